// One data stream of a link. The connecting side sends writes, read requests and fence markers on
// it and receives read responses; the accepting side the reverse.
//
// It may end and be made anew, with a new socket: each attempt is a *life* of it, counted from 1,
// and what an earlier life left is forgotten with its socket.
//
// Order: frames leave in the order of Post, except that a fence marker overtakes frames of other
// transfers that have not begun.
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_TCP_RAIL_H_
#define KVXFER_BACKENDS_TCP_RAIL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/frames.h"
#include "src/core/base/clock.h"
#include "src/transport/regions.h"
#include "src/transport/sockets/socket.h"
#include "src/transport/sockets/stream.h"

namespace kvxfer::tcp {

class Link;

// Pieces of one system call: IOV_MAX on Linux.
inline constexpr size_t kMaxIovecs = 1024;

// Shorter runs, on average, are copied to and from the scratch buffer, which costs less than a
// piece of a system call for each: measured over loopback, 256 bytes go 2.5 times as fast so, 512
// bytes 1.5 times; from 1 KiB on they go slower.
inline constexpr size_t kShortRun = 1024;
constexpr bool AreShort(size_t bytes, size_t runs) { return bytes < runs * kShortRun; }

class Rail final : public net::Stream {
 public:
  Rail(Link* link, uint32_t index);

  uint32_t index() const { return index_; }

  // --- its life (rail_life.cc) ---
  // kDown → kConnecting → kGreeting (the welcome is awaited) → kUp → kDown; the accepting side goes
  // straight to kUp.
  enum class State : uint8_t { kDown, kConnecting, kGreeting, kUp };
  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  bool dialling() const { return state_ == State::kConnecting || state_ == State::kGreeting; }
  // Begins a new life. An error ends it.
  absl::Status Dial(const net::SocketAddress& from, const net::SocketAddress& to);
  // What there is to do while dialling(). An error ends this life.
  absl::Status Greet(Preamble preamble);
  // Accepting side: takes the socket, watched already, of a life higher than life().
  void Take(net::Fd fd, uint32_t life);
  // Closes the socket and forgets every frame; ops complete with `why`.
  void Close(const absl::Status& why);
  uint32_t life() const { return life_; }
  // The last life in which it was up; 0: none.
  uint32_t last_up() const { return last_up_; }

  // --- noticing that nobody answers (rail_life.cc) ---
  // Whether bytes were sent whose way is watched.
  bool watched() const { return watched_; }
  // What was sent has gone unacknowledged for too long, though the peer has room for it.
  bool Stalled(Time now);
  // What came of the ops of this life: as much as a packet of full size came through, or not even
  // that of two and more, or nothing at all of less; anything else proves nothing. While it is
  // attached().
  enum class Outcome : uint8_t { kUnknown, kUnheard, kInVain, kCarried };
  Outcome outcome() const;

  // --- sending (rail_send.cc) ---
  // Whether one more op may wait here for the socket.
  bool HasRoom() const;
  void Push(const Op& op);  // checked
  void PushMarker(uint64_t transfer);
  // Sends frames until `budget` bytes, or what the socket takes.
  absl::Status Send(size_t budget);
  bool CanSend() const { return writable() && !out_.empty(); }  // implies up()
  // Bytes of ops that wait for the socket.
  uint64_t queued_bytes() const { return queued_bytes_; }

  // --- receiving (rail_receive.cc) ---
  // Receives until `budget` bytes, what there is, or until the link has a control message.
  absl::Status Receive(size_t budget);
  bool CanReceive() const;
  // Enough is being served: what comes in waits in the socket.
  bool Paused() const;

  // --- ending (rail_fence.cc) ---
  // Connecting side: completes every op of `transfer` with `why`, or of all (0); of a frame that
  // has begun the rest is filler, and void.
  void CancelOps(uint64_t transfer, const absl::Status& why);
  // Accepting side: lands and serves nothing more of `transfer`.
  void Discard(uint64_t transfer);
  // A region closes: it is served no more. False: a frame is landing in it.
  bool ReleaseRegion(const net::Region* region);

 private:
  enum class Stage : uint8_t { kHead, kRuns, kPayload, kTrailer };

  // A frame to send. Once voided its runs are not touched any more.
  struct Outgoing {
    FrameHead head;
    std::vector<std::byte> prefix;  // head and runs, encoded; empty until it is gathered
    std::array<std::byte, kTrailerBytes> trailer{};
    bool owes_completion = false;  // `op`, when the frame has been sent
    bool has_immediate = false;
    bool voided = false;
    uint32_t immediate = 0;
    uint64_t op = 0;
    std::span<const Run> runs;  // of the op, or of `served`
    std::vector<Run> served;    // read response: local is the source
  };
  // A read whose response has not ended.
  struct PendingRead {
    uint64_t number = 0;
    uint64_t op = 0;
    uint64_t transfer = 0;
    uint64_t bytes = 0;
    std::span<const Run> runs;
  };
  struct Landing {
    std::byte* data = nullptr;
    size_t bytes = 0;
    const net::Region* region = nullptr;
  };

  absl::Status SendPreamble(const Preamble& preamble);
  absl::Status ReadWelcome(const LinkId& link);

  bool begun() const { return sent_ > 0; }
  void EncodePrefix(Outgoing& frame);
  void EncodeTrailer(Outgoing& frame, size_t sent) const;
  size_t Gather(std::span<iovec> pieces, size_t limit);
  size_t GatherPayload(const Outgoing& frame, size_t sent, std::span<iovec> pieces, size_t limit,
                       std::span<std::byte>& scratch) const;
  void Advance(size_t bytes);
  void AdvancePayload(const Outgoing& frame, size_t from, size_t to);
  void FinishFrame();

  absl::StatusOr<bool> ParseStaged();
  absl::StatusOr<size_t> ReadMore();
  absl::StatusOr<size_t> ReadStaged();
  absl::StatusOr<size_t> ReadPayload();
  size_t staged() const { return in_end_ - in_begin_; }
  size_t StageBytes() const;
  absl::Status OnHead();
  WireRun RunAt(size_t i) const;
  absl::Status OnRuns();
  absl::Status OnWriteRuns();
  absl::Status OnReadRuns();
  absl::Status OnResponse();
  absl::Status OnTrailer();
  void LandStaged();
  void Land(std::span<const std::byte> bytes);
  void SkipLanded(size_t bytes);
  void StartPayload();
  void CompleteOp(uint64_t op, absl::Status status);

  Link* const link_;
  const uint32_t index_;
  State state_ = State::kDown;
  uint32_t life_ = 0;
  uint32_t last_up_ = 0;
  std::array<std::byte, kWelcomeBytes> welcome_{};
  size_t welcomed_ = 0;  // bytes of it
  uint64_t given_ = 0;   // bytes of the ops of this life
  bool watched_ = false;
  uint64_t acknowledged_ = 0;  // when it was looked at last
  Time answered_{};            // when more had been acknowledged than before, or nothing was due

  // Sending. Only out_[0] can have begun.
  std::deque<Outgoing> out_;
  uint64_t queued_bytes_ = 0;
  std::vector<std::vector<std::byte>> spare_prefixes_;  // of frames that are over
  size_t sent_ = 0;        // bytes of out_[0], prefix, payload and trailer
  size_t run_ = 0;         // where its payload goes on
  uint64_t run_sent_ = 0;  // bytes of runs[run_]
  uint64_t last_number_ = 0;
  std::deque<PendingRead> reads_;

  // Receiving.
  Stage stage_ = Stage::kHead;
  FrameHead head_;
  bool discard_ = false;  // the frame at hand must not land
  std::vector<Landing> landings_;
  size_t landing_ = 0;  // where the payload goes on
  size_t landed_ = 0;   // bytes of landings_[landing_]
  size_t payload_left_ = 0;
  std::unique_ptr<std::byte[]> in_;  // staged: heads, runs, trailers, small payloads
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_RAIL_H_
