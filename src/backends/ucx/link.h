// One connection: what both of its sides do. The dialling side queues ops and messages and lets
// them go frame by frame as its path has room; the accepting side checks and copies. Each side has
// a random cookie of its own, which the other's frames carry.
//
//   link.cc          its life: hello, welcome, end
//   link_send.cc     ops, messages, fences and served reads become frames
//   link_receive.cc  frames become bytes in memory, and events
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_UCX_LINK_H_
#define KVXFER_BACKENDS_UCX_LINK_H_

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/resequencer.h"
#include "src/core/base/clock.h"
#include "src/transport/fence_book.h"

namespace kvxfer::ucx {

class Path;
class UcxBackend;

class Link final : public Endpoint {
 public:
  // Connecting: says hello at once.
  Link(UcxBackend* backend, Path* path, const Address& peer);
  // Accepting: answers the hello.
  Link(UcxBackend* backend, Path* path, const Hello& hello);
  ~Link() override;

  uint32_t rails() const override { return 1; }
  std::string Describe() const override;
  void Authorize() override;
  size_t Post(std::span<const Op> ops) override;
  bool Send(std::span<const std::byte> message) override;
  void Fence(uint64_t transfer) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  bool accepted() const { return side_ == Side::kAccepting; }
  bool down() const { return state_ == State::kDown; }
  Time made() const { return made_; }
  uint64_t cookie() const { return cookie_; }
  uint64_t peer_cookie() const { return peer_cookie_; }
  Path* path() const { return path_; }

  // One frame with this link's cookie, in whatever order it comes.
  void OnFrame(const FrameHead& head, std::span<const std::byte> body);
  // The path is over: ends without a word to the peer, which no word reaches.
  void OnPathDown(const absl::Status& why);
  // Makes frames of what waits, while there is room and up to `budget` bytes, which it reduces.
  void Pump(size_t& budget);
  // Pump would make one, had the path room.
  bool WantsToSend() const;
  // The backend goes; the agent will destroy this later.
  void Detach();

 private:
  enum class Side : uint8_t { kConnecting, kAccepting };
  enum class State : uint8_t { kDialling, kUp, kDown };

  // What goes ahead of messages and data, and is small.
  struct Control {
    FrameKind kind;
    uint64_t transfer = 0;
  };
  struct Queued {
    Op op;
    size_t run = 0;       // the next to be sent
    uint64_t offset = 0;  // in it
  };
  // A read that was asked for: where its next bytes go.
  struct Reading {
    Op op;
    size_t run = 0;
    uint64_t offset = 0;
  };
  // A read that is served: which bytes go next.
  struct Serving {
    uint32_t number = 0;
    uint64_t transfer = 0;
    std::vector<WireRun> pieces{};
    size_t piece = 0;
    uint32_t offset = 0;
    bool voided = false;
  };

  absl::Status CheckOp(const Op& op) const;
  std::string Name() const;
  void End(absl::Status why, bool tell);
  void EndOps(const absl::Status& why);
  void CancelOps(uint64_t transfer);
  void Emit(EventKind kind, uint64_t id = 0, absl::Status status = {});
  void Complete(uint64_t op, absl::Status status);

  // link_send.cc
  bool HasCredit() const { return data_sent_ - data_acknowledged_ + kMaxFrameBytes <= kDataWindow; }
  void SendFrame(FrameHead head);
  bool SendOne(size_t& budget);
  void SendControl();
  size_t SendMessagePart(size_t room);
  size_t SendData(size_t room);
  size_t SendWritePart(size_t room);
  size_t SendReadRequest();
  size_t ServeReadPart(size_t room);
  bool SendBye(std::string_view why);

  // link_receive.cc
  absl::Status Handle(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnWelcome(std::span<const std::byte> body);
  absl::Status OnMessage(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnWrite(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnRead(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnReadData(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnFence(uint64_t transfer);
  absl::Status OnCredit(uint32_t taken);
  void TookData(const FrameHead& head);

  UcxBackend* backend_;
  const Side side_;
  State state_;
  Path* path_;
  const Time made_ = Now();
  const uint64_t cookie_;
  uint64_t peer_cookie_ = 0;  // 0: not known yet
  const std::string peer_;    // for a person
  bool authorized_ = false;   // accepting: by the agent; connecting: the peer said so

  uint64_t order_ = 0;  // of the frame sent last
  // Bytes of data frames, modulo 2^32: sent and acknowledged; taken, and what the peer was told of
  // those.
  uint32_t data_sent_ = 0;
  uint32_t data_acknowledged_ = 0;
  uint32_t data_taken_ = 0;
  uint32_t data_told_ = 0;
  Resequencer incoming_;

  std::deque<Control> controls_;
  std::deque<std::string> messages_;
  size_t message_sent_ = 0;   // of the first of those
  size_t message_bytes_ = 0;  // of all of those
  std::string partial_;       // of the message that comes in

  std::deque<Queued> ops_;                       // connecting: not all sent
  std::unordered_map<uint32_t, Reading> reads_;  // connecting: asked for
  uint32_t read_number_ = 0;
  std::deque<Serving> served_;  // accepting
  FenceBook fences_{1};         // accepting
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_LINK_H_
