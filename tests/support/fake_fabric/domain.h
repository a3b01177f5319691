// A domain: one device of the fake fabric, all its endpoints, and what is on the way to and from
// them. Its one thread stands for the hardware; with progress=both it has none.
//
// Thread-safety: everything under `mutex`; take it by Hold.
#ifndef KVXFER_TESTS_SUPPORT_FAKE_FABRIC_DOMAIN_H_
#define KVXFER_TESTS_SUPPORT_FAKE_FABRIC_DOMAIN_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/support/fake_fabric/objects.h"

namespace fake_fabric {

uint64_t NowMicroseconds();

// What an endpoint is asked to post.
struct Posting {
  Kind kind = Kind::kWrite;
  const iovec* iov = nullptr;
  void** desc = nullptr;
  size_t count = 0;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const fi_rma_iov* remote = nullptr;
  size_t remote_count = 0;
  bool has_data = false;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t flags = 0;     // of the call; default_flags are added by calls that take none
  bool injected = false;  // fi_inject*: no completion
};

class Domain : public fid_domain {
 public:
  using Fid = fid_domain;

  Domain(Fabric* fabric, const fi_info& info);
  ~Domain();

  // Asks the mutex for a turn that the device's thread gives way to.
  class Hold {
   public:
    explicit Hold(Domain* domain) : domain_(domain) {
      ++domain_->waiting_;
      domain_->mutex_.lock();
      --domain_->waiting_;
    }
    ~Hold() { domain_->mutex_.unlock(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Domain* const domain_;
  };

  bool Start();  // false: no socket
  Fabric* fabric() const { return fabric_; }
  const Config& config() const { return config_; }
  int users = 0;  // children that are open

  // outgoing.cc
  ssize_t Post(Endpoint* endpoint, const Posting& posting);
  // Of one that closes: what has not left is dropped or leaves by itself, the rest is withdrawn.
  void Withdraw(Endpoint* endpoint);
  // What a read of a completion queue does.
  void Progress();
  bool HasWork() const { return !unsent_.empty() || !answers_.empty(); }

  // inbound.cc
  void AddEndpoint(Endpoint* endpoint);
  void RemoveEndpoint(const Endpoint* endpoint);
  size_t endpoints() const { return endpoints_.size(); }
  void ReceivePosted();  // what waited for one may go on

  // region.cc
  int AddRegion(Region* region, uint64_t wanted_key);
  void RemoveRegion(Region* region);
  bool Covers(const void* desc, const iovec& iov, uint64_t access) const;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> mapped_keys{};  // of peers, raw

  // FI_CONTEXT2: as who keeps things there, so that a context without the room is noticed.
  void WriteTo(void* context);
  bool Chance(double probability);
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

 private:
  struct Segment {
    uint64_t from = 0;
    size_t piece = 0;
    uint64_t offset = 0;  // within the remote piece
    size_t bytes = 0;
  };
  struct Inbound {
    Request request{};
    uint64_t due_us = 0;
    bool checked = false;
    bool answered = false;  // only its immediate is missing
    std::vector<Segment> todo{};
  };
  struct OutReply {
    uint64_t node = 0;
    Reply reply{};
  };
  enum class Turn : uint8_t { kIdle, kSome, kOver };

  void Run();

  // outgoing.cc
  int Check(const Endpoint& endpoint, const Posting& posting) const;
  bool Describe(const Endpoint& endpoint, const Posting& posting, Op* op);
  void DecideFate(Op* op);
  void CopySource(Op* op);
  void FlushUnsent();
  void FlushReplies();
  void HandleAnswers();
  void Answer(const Reply& reply);
  int FetchRead(const Op& op, const Reply& reply);
  void Complete(Op* op, int error);
  void LookForTheDead(uint64_t now);

  // inbound.cc
  void ReceiveAll();
  void TakeRequest(const Request& request);
  bool LandSome();
  size_t Choose(uint64_t now);
  bool Ordered(const Request& request) const;
  Turn LandOne(Inbound* inbound);
  Turn LandMessage(Inbound* inbound, Endpoint* endpoint);
  Turn TellArrival(Inbound* inbound, Endpoint* endpoint);
  Turn LandPieces(Inbound* inbound, const Endpoint* endpoint);
  Region* FindRegion(const Endpoint& endpoint, const RemotePiece& piece, Kind kind) const;
  int GrantRead(const Inbound& inbound, const Endpoint* endpoint);
  void CutIntoSegments(Inbound* inbound);
  void Tell(const Inbound& inbound, int error);
  uint64_t NextDue() const;

  Fabric* const fabric_;
  const Config config_;
  std::mutex mutex_;
  std::atomic<int> waiting_{0};
  std::mt19937_64 random_;
  const Wire wire_;
  const int wake_;  // eventfd of the thread
  std::thread thread_;
  bool stop_ = false;

  std::unordered_map<uint64_t, std::unique_ptr<Op>> ops_;
  std::deque<uint64_t> unsent_;
  std::deque<Reply> answers_;
  std::deque<OutReply> replies_;
  uint64_t probed_us_ = 0;

  std::unordered_map<uint16_t, Endpoint*> endpoints_;
  uint16_t next_qpn_ = 1;
  std::deque<Inbound> inbound_;
  std::vector<std::byte> staging_;

  std::unordered_map<uint64_t, Region*> regions_;  // by remote key
  std::unordered_set<const void*> descriptors_;    // regions that are open
};

}  // namespace fake_fabric

#endif  // KVXFER_TESTS_SUPPORT_FAKE_FABRIC_DOMAIN_H_
