// One data stream of an endpoint. The connecting side sends writes, read requests and fence markers
// on it and receives read responses; the accepting side the reverse.
//
// The stream may end and be connected again with a new socket. Each attempt is a *life* of the
// rail, counted from 1. What an earlier life left over goes with its socket.
//
// Order: frames are sent in the order of Post, except that a fence marker overtakes frames of other
// transfers that have not begun.
// Thread-safety: none. The agent's driver calls it; of a rail that is lent to a data thread only
// what needs no exclusion (index, state, life, last_up, fd), or while it holds that thread
// (data_thread.h).

#ifndef KVXFER_BACKENDS_TCP_RAIL_H_
#define KVXFER_BACKENDS_TCP_RAIL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/frames.h"
#include "src/backends/tcp/rail_host.h"
#include "src/backends/tcp/stage_pool.h"
#include "src/core/base/clock.h"
#include "src/transport/rail_life.h"
#include "src/transport/regions.h"
#include "src/transport/sockets/socket.h"
#include "src/transport/sockets/stream.h"

namespace kvxfer::tcp {

// The most pieces of one system call: IOV_MAX on Linux.
inline constexpr size_t kMaxIovecs = 1024;

// Runs that are shorter than this on average are copied through the scratch buffer, which costs
// less than one piece of a system call per run. Measured over loopback: runs of 256 bytes are 2.5
// times as fast this way, 512 bytes 1.5 times; from 1 KiB on they are slower.
inline constexpr size_t kShortRun = 1024;
constexpr bool AreShort(size_t bytes, size_t runs) { return bytes < runs * kShortRun; }

class TcpRail final : public net::Stream {
 public:
  // `host` and `client`: of the rail's endpoint, whose `connecting` side this is.
  TcpRail(RailHost* host, net::StreamClient* client, bool connecting, uint32_t index);

  uint32_t index() const { return index_; }
  // `host` runs the rail from now on. An error ends this life.
  absl::Status MoveTo(RailHost* host, net::StreamClient* client);

  // --- its life (rail_life.cc) ---
  // kDown → kConnecting → kGreeting (waits for the welcome) → kUp → kDown. The accepting side goes
  // straight to kUp.
  enum class State : uint8_t { kDown, kConnecting, kGreeting, kUp };
  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  bool dialling() const { return state_ == State::kConnecting || state_ == State::kGreeting; }
  // Begins the life of that number. An error ends it.
  absl::Status Dial(uint32_t life, const net::SocketAddress& from, const net::SocketAddress& to);
  // Does what is due while dialling(). An error ends this life.
  absl::Status Greet(Preamble preamble);
  // Accepting side: takes the socket of a new life, which must be higher than life(). The socket is
  // watched already.
  void Take(net::Fd fd, uint32_t life);
  // Closes the socket and forgets every frame. Ops complete with `why`.
  void Close(const absl::Status& why);
  uint32_t life() const { return life_; }
  // The last life in which the rail was up; 0: none.
  uint32_t last_up() const { return last_up_; }

  // --- detecting that nobody answers (rail_life.cc) ---
  // Whether the acknowledgements of sent bytes are being watched.
  bool watched() const { return watched_; }
  // True: sent data has been unacknowledged for too long although the peer has space for it.
  bool Stalled(Time now);
  // What this life has carried of its ops. kData: at least as much as a packet of full size.
  // kNothing: less than that, of two such packets or more. kUnheard: nothing at all, of less than
  // two. kUnknown: anything else, which proves nothing. Call it only while attached().
  RailLife::Carried carried() const;

  // --- sending (rail_send.cc) ---
  // Whether one more op may wait here for the socket.
  bool HasSpace() const;
  void Push(const Op& op);  // checked by the endpoint
  void PushMarker(uint64_t transfer);
  // Whether one more op may wait, where that much does already.
  static bool HasSpace(uint64_t bytes, size_t frames, size_t reads);
  // Sends frames, up to `budget` bytes or as much as the socket takes.
  absl::Status Send(size_t budget);
  bool CanSend() const { return writable() && !out_.empty(); }  // implies up()
  // Bytes of ops that wait for the socket.
  uint64_t queued_bytes() const { return queued_bytes_; }

  // --- receiving (rail_receive.cc) ---
  // Receives up to `budget` bytes, as much as there is, or until the host says that something comes
  // first.
  absl::Status Receive(size_t budget);
  bool CanReceive() const;
  // Why the stream has ended, of one that hung_up(). Nothing more is read from it, even if its
  // socket still holds bytes.
  absl::Status WhyHungUp() const;
  // Enough reads are being served: further requests wait in the socket.
  bool Paused() const;

  // --- ending (rail_fence.cc) ---
  // Connecting side: completes every op of `transfer` with `why`, or every op (0). The rest of a
  // frame that has begun is sent as filler, and the frame is void.
  void CancelOps(uint64_t transfer, const absl::Status& why);
  // Accepting side: writes and serves nothing more of `transfer`, until Allow.
  void Discard(uint64_t transfer);
  void Allow(uint64_t transfer);
  // A region closes and is no longer served. False: a frame is being written into it.
  bool ReleaseRegion(const net::Region* region);

 private:
  enum class Stage : uint8_t { kHead, kRuns, kPayload, kTrailer };

  // What a read response sends: runs of this side's memory, as a list of blocks.
  struct Served {
    std::vector<Block> blocks;
    std::vector<const Registration*> regions;  // of each block
    BlockView view;
  };
  // A frame to send. Once it is voided its blocks are no longer read.
  struct Outgoing {
    FrameHead head;                 // `runs`: before merging, until the prefix is encoded
    std::vector<std::byte> prefix;  // head and runs, encoded; empty until Gather
    std::array<std::byte, kTrailerBytes> trailer{};
    bool owes_completion = false;  // `op` completes when the frame has been sent
    bool has_immediate = false;
    bool voided = false;
    bool short_runs = false;  // see AreShort; of a write once the prefix is encoded
    uint32_t immediate = 0;
    uint64_t op = 0;
    RunWalk payload;                 // what was not sent yet; `local` is the source
    std::unique_ptr<Served> served;  // of a read response
  };
  // A read whose response has not ended.
  struct PendingRead {
    uint64_t number = 0;
    uint64_t op = 0;
    uint64_t transfer = 0;
    BlockRange blocks;
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
  void EncodeRuns(Outgoing& frame);
  void EncodeTrailer(Outgoing& frame, size_t sent) const;
  size_t Gather(std::span<iovec> pieces, size_t limit);
  size_t GatherPayload(const Outgoing& frame, size_t sent, std::span<iovec> pieces, size_t limit,
                       std::span<std::byte>& scratch) const;
  void Advance(size_t bytes);
  void FinishFrame();

  absl::Status ReceiveSome(size_t budget);
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
  absl::StatusOr<std::unique_ptr<Served>> Serve() const;
  absl::Status OnResponse();
  absl::Status OnTrailer();
  void LandStaged();
  void Land(std::span<const std::byte> bytes);
  void SkipReceived(size_t bytes);
  void StartPayload();
  void CompleteOp(uint64_t op, absl::Status status);

  RailHost* host_;
  const bool connecting_;
  const uint32_t index_;
  State state_ = State::kDown;
  uint32_t life_ = 0;
  uint32_t last_up_ = 0;
  std::array<std::byte, kWelcomeBytes> welcome_{};
  size_t welcomed_ = 0;  // bytes of welcome_ that were received
  uint64_t given_ = 0;   // bytes of the ops of this life
  bool watched_ = false;
  uint64_t acknowledged_ = 0;  // at the last look
  Time answered_{};            // when acknowledgements last advanced, or none were due

  // Sending. Only out_[0] can have begun.
  std::deque<Outgoing> out_;
  uint64_t queued_bytes_ = 0;
  std::vector<std::vector<std::byte>> spare_prefixes_;  // of frames that are over
  size_t sent_ = 0;  // bytes of out_[0]: prefix, payload and trailer
  uint64_t last_number_ = 0;
  uint64_t requested_ = 0;  // the number of the last read whose request has left
  std::deque<PendingRead> reads_;

  // Receiving.
  Stage stage_ = Stage::kHead;
  FrameHead head_;
  bool discard_ = false;                 // the current frame must not be written to memory
  std::unordered_set<uint64_t> fenced_;  // transfers whose frames are discarded
  std::vector<Landing> landings_;
  size_t landing_ = 0;   // where the payload continues
  size_t received_ = 0;  // bytes of landings_[landing_]
  size_t payload_left_ = 0;
  // Staging: heads, runs, trailers, small payloads. Null while there is nothing in it.
  StagePool::Buffer in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_RAIL_H_
