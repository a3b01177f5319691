// One connection, both sides. The connecting side queues ops and messages and sends them frame by
// frame as its path has space. The accepting side checks each frame and copies. Each side chooses a
// random cookie, which the peer's frames name.
//
//   endpoint.cc          hello, welcome, the agent's calls, the end
//   endpoint_send.cc     turns ops, messages, fences and served reads into frames
//   endpoint_receive.cc  turns frames into bytes in memory and into events
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_UCX_ENDPOINT_H_
#define KVXFER_BACKENDS_UCX_ENDPOINT_H_

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

class UcxEndpoint final : public Endpoint {
 public:
  // The connecting side: sends the hello at once.
  UcxEndpoint(UcxBackend* backend, Path* path, const Address& peer);
  // The accepting side: queues the answer to `hello`.
  UcxEndpoint(UcxBackend* backend, Path* path, const Hello& hello);
  ~UcxEndpoint() override;

  EndpointInfo Describe() const override;
  void Authorize() override;
  Posted Post(const Op& op) override;
  bool Send(std::span<const std::byte> message) override;
  void Fence(FenceScope scope) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  bool accepted() const { return side_ == Side::kAccepting; }
  bool down() const { return state_ == State::kDown; }
  Time made() const { return made_; }
  uint64_t cookie() const { return cookie_; }
  uint64_t peer_cookie() const { return peer_cookie_; }
  Path* path() const { return path_; }
  // The id of the peer's own path, as its hello or its welcome says; 0: not known yet.
  uint64_t peer_path() const { return peer_path_; }
  // Accepting side: the process that the peer says it is; it may be believed once the endpoint is
  // authorised.
  const HostIdentity& caller() const { return caller_; }
  // Accepting side: nothing shows that the peer has received the welcome, and nothing else was
  // sent.
  bool only_welcomed() const {
    return accepted() && !authorized_ && !incoming_.begun() && order_ <= 1;
  }
  // The welcome goes out once more, over `path`. Only where only_welcomed().
  void WelcomeAgain(Path* path);

  // A frame that names this endpoint's cookie. UCX may deliver frames out of order.
  void OnFrame(const FrameHead& head, std::span<const std::byte> body);
  // The path has failed: ends the endpoint without a bye, which could not reach the peer.
  void OnPathDown(const absl::Status& why);
  // Turns what is queued into frames while the path has space and `budget` is above 0; reduces
  // `budget` by the bytes sent.
  void Pump(size_t& budget);
  // Pump would send a frame if the path had space.
  bool WantsToSend() const;
  // The backend is being destroyed; the agent destroys the endpoint later.
  void Detach();

 private:
  enum class Side : uint8_t { kConnecting, kAccepting };
  enum class State : uint8_t { kDialling, kUp, kDown };

  // A small frame that is sent before messages and data.
  struct Control {
    FrameKind kind;
    uint64_t transfer = 0;
  };
  struct Queued {
    Op op;
    RunWalk walk;  // what was not sent yet
  };
  // A read that was sent; says where its next bytes go.
  struct Reading {
    Op op;
    RunWalk walk;
  };
  // A read of the peer that is being served; says which bytes are sent next.
  struct Serving {
    uint32_t number = 0;
    uint64_t transfer = 0;
    std::vector<WireRun> pieces{};
    size_t piece = 0;
    uint32_t offset = 0;
    bool voided = false;  // was fenced, or its region is gone
  };

  absl::Status CheckOp(const Op& op) const;
  std::string Name() const;
  void End(absl::Status why, bool tell);
  void EndOps(const absl::Status& why);
  void CancelOps(uint64_t transfer);
  void Emit(EventKind kind, uint64_t id = 0, absl::Status status = {});
  void EmitFenced(uint64_t transfer, uint32_t answers = 1);
  void Complete(uint64_t op, absl::Status status);

  // endpoint_send.cc
  // True: the window has space for a whole frame, whatever its size.
  bool HasCredit() const { return data_sent_ - data_acknowledged_ + kMaxFrameBytes <= kDataWindow; }
  void SendFrame(FrameHead head);
  bool SendOne(size_t& budget);
  void SendControl();
  size_t SendMessagePart(size_t space);
  size_t SendData(size_t space);
  size_t SendWritePart(size_t space);
  size_t SendReadRequest();
  size_t ServeReadPart(size_t space);
  bool SendBye(std::string_view why);

  // endpoint_receive.cc
  absl::Status Handle(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnWelcome(std::span<const std::byte> body);
  absl::Status OnMessage(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnWrite(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnRead(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnReadData(const FrameHead& head, std::span<const std::byte> body);
  absl::Status OnFence(uint64_t transfer);
  absl::Status OnCredit(uint32_t taken);
  void TookData(const FrameHead& head);

  // Null after Detach.
  UcxBackend* backend_;
  const Side side_;
  State state_;
  // Null while the endpoint is down.
  Path* path_;
  const Time made_ = Now();
  const uint64_t cookie_;
  uint64_t peer_cookie_ = 0;  // 0: not known yet
  uint64_t peer_path_ = 0;
  const HostIdentity caller_{};
  const std::string peer_;   // text for people
  bool authorized_ = false;  // accepting: the agent said so; connecting: the peer said so

  uint64_t order_ = 0;  // number of the last frame that was sent
  // Charged bytes of data frames, modulo 2^32: sent and acknowledged by the peer; taken from the
  // peer, and how many of those were acknowledged.
  uint32_t data_sent_ = 0;
  uint32_t data_acknowledged_ = 0;
  uint32_t data_taken_ = 0;
  uint32_t data_reported_ = 0;
  Resequencer incoming_{side_ == Side::kAccepting ? Resequencer::kNarrow : Resequencer::kWide};

  std::deque<Control> controls_;
  std::deque<std::string> messages_;
  size_t message_sent_ = 0;   // bytes of the first message that were sent
  size_t message_bytes_ = 0;  // bytes of all queued messages
  std::string partial_;       // the message that is being received

  std::deque<Queued> ops_;                       // connecting side: not completely sent
  std::unordered_map<uint32_t, Reading> reads_;  // connecting side: sent reads, by number
  uint32_t read_number_ = 0;
  std::deque<Serving> served_;  // accepting side: reads to serve, in order
  FenceBook fences_{1};         // accepting side
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_ENDPOINT_H_
