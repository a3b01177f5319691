// RDMA devices in memory: the seam of the verbs backend (src/backends/verbs/ibv.h) without a NIC,
// for any number of agents of one process, each with an Ibv of its own.
//
// Semantics are those of reliable connected queue pairs: order within a pair, completions, rkeys
// with rights and bounds, receives out of a shared queue, SENDs into receives of a queue pair's
// own, RNR where there is none, error states that flush, retries that end. One thread stands for
// the hardware; every byte moves under the fabric's lock, so whoever sees a completion, or has put
// a queue pair into error or destroyed it, has seen what landed before. Each call can be made to
// fail, and links to break.
//
// GPU memory is that of the stand-in CUDA driver (cuda_driver/hooks.h), registered as dmabuf or, as
// if the module were loaded, by its address. What a device writes there is not seen by anybody
// before it is flushed.
//
// Thread-safety: all of it, from any thread. Outlives every Ibv that it made.
#ifndef KVXFER_TESTS_SUPPORT_VERBS_FABRIC_H_
#define KVXFER_TESTS_SUPPORT_VERBS_FABRIC_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kvxfer/types.h"
#include "src/backends/verbs/ibv.h"
#include "src/core/base/clock.h"

namespace kvxfer::testing {

struct FabricGid {
  uint32_t index = 0;
  ibv_gid_type type = IBV_GID_TYPE_ROCE_V2;
  ibv_gid gid{};
};

struct FabricPort {
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_port_state state = IBV_PORT_ACTIVE;
  ibv_mtu mtu = IBV_MTU_4096;
  uint16_t lid = 0;
  int network = 0;  // ports of different networks do not reach each other
  std::vector<FabricGid> gids{};
  std::vector<uint16_t> pkeys{0xffff};
  Duration look_up{};     // what it takes to find out who has one of its addresses
  int look_up_error = 0;  // and what comes of it
};

struct FabricDevice {
  std::string name;
  std::vector<FabricPort> ports;
  int max_cqe = 32767;
  int max_qp_wr = 16384;
  int max_sge = 16;
  int max_sge_rd = 16;
  int max_srq_wr = 16384;
  uint32_t max_inline = 220;
  bool refuses_destroy = false;
  std::string host{};  // whose it is: the name of an agent; empty: everybody's
};

// A RoCE v2 port at 10.77.`subnet`.`host`, with the sparse GID table of such a port.
FabricPort RocePort(uint8_t subnet, uint8_t host);
FabricPort InfinibandPort(uint16_t lid, uint64_t subnet_prefix = 0xfe80000000000000);

enum class Call : uint8_t {
  kListDevices,
  kOpen,
  kClose,
  kQueryDevice,
  kQueryPort,
  kQueryGid,
  kQueryPkey,
  kAllocPd,
  kDeallocPd,
  kRegMr,
  kRegDmabufMr,
  kDeregMr,
  kCreateChannel,
  kDestroyChannel,
  kCreateCq,
  kDestroyCq,
  kCreateSrq,
  kArmSrqLimit,
  kDestroySrq,
  kCreateQp,
  kModifyQp,
  kDestroyQp,
  kPostSend,
  kPostRecv,
  kPostSrqRecv,
  kPollCq,
  kReqNotify,
  kNextCqEvent,
  kNextAsyncEvent,
  kCount,
};
const char* CallName(Call call);

class VerbsFabric {
 public:
  explicit VerbsFabric(std::vector<FabricDevice> devices);
  ~VerbsFabric();

  // With the devices of `host`.
  std::unique_ptr<verbs::Ibv> MakeIbv(std::string host = {});

  // --- what goes wrong ---
  // The n-th call of that kind from now on (1: the next) fails with `error`; once.
  void FailCall(Call call, uint64_t n, int error);
  uint64_t calls(Call call);
  // Up or down, with the async event where `tell`.
  void SetPort(const std::string& device, uint8_t port, bool up, bool tell = true);
  // A port's first GID of RoCE v2 becomes another.
  void SetNetwork(const std::string& device, uint8_t port, int network);
  // An event of a port, or of the device; of each of its queue pairs, where it is of that kind.
  void Raise(const std::string& device, ibv_event_type type, uint8_t port = 0);
  // What a subnet manager or an administrator changes; nobody is told.
  void Change(const std::string& device, uint8_t port, const std::function<void(FabricPort&)>& how);
  // The next `n` signalled send requests are executed, and no completion comes: as if the device
  // had forgotten them.
  void LoseCompletions(uint64_t n);
  // The next `n` signalled send requests are executed, and fail at the initiator as if every
  // acknowledgement had been lost.
  void LoseAcks(uint64_t n);
  void DelayCompletions(Duration delay);
  // The peer's device has executed or refused a request so long before the initiator's hears of it.
  void DelayAcks(Duration delay);
  // The next `n` writes of at least `bytes` fail so, and nothing is written.
  void FailWrites(uint64_t n, uint64_t bytes, ibv_wc_status status);
  // The n-th SEND from now on fails so (1: the next); the peer has it all the same if `arrives`.
  void FailSend(uint64_t n, bool arrives, ibv_wc_status status = IBV_WC_RETRY_EXC_ERR);
  // A queue pair that goes into error has a receive of its queue in its hands, and gives it back,
  // as flushed, so much later; it is lost where the queue pair is destroyed before.
  void KeepReceives(Duration time);
  // Of backends that are made from now on: requests of one queue pair are executed in any order,
  // and completions come in any order, by this seed, as with SRD.
  void Reorder(uint64_t seed);
  // So long each registration of memory takes.
  void SetRegistrationTime(Duration time);
  // No device takes more bytes of GPU memory than that as one registration (EINVAL, EFAULT).
  void RefuseGpuMemoryAbove(uint64_t bytes);
  // Nothing moves while held.
  void Hold(bool held);
  // Whoever makes a queue pair ready to receive from that port is blocked for `time`, and then told
  // `error`: as the kernel does on RoCE while it looks for the owner of an address.
  void SetLookUp(const std::string& device, uint8_t port, Duration time, int error = 0);
  // While so, no queue pair of that device can be destroyed.
  void RefuseDestroy(const std::string& device, bool refuses);
  // How long an unreachable peer is tried: what timeout and retry_count stand for.
  void SetRetryTime(Duration time);

  // --- what happened ---
  // Contexts, domains, regions, queues and channels that are not destroyed.
  size_t live_objects();
  // Rights (ibv_access_flags) of the regions that there are.
  std::vector<int> region_rights();
  size_t queue_pairs(const std::string& device);
  // Receives that are posted on queue pairs with receives of their own.
  size_t own_receives(const std::string& device);
  // Bytes of requests that were posted on it.
  uint64_t moved(const std::string& device);
  size_t look_ups() { return Locked(look_ups_); }          // whose callers are blocked
  uint64_t overruns() { return Locked(overruns_); }        // of completion queues
  uint64_t doorbells() { return Locked(doorbells_); }      // calls of PostSend
  uint64_t requests() { return Locked(requests_); }        // work requests in them
  uint64_t completions() { return Locked(completions_); }  // entries of completion queues made
  uint64_t sends() { return Locked(sends_); }              // SENDs that have arrived
  // Writes with immediate that met an empty receive queue, and SENDs that found no receive.
  uint64_t not_ready() { return Locked(not_ready_); }

 private:
  friend class FabricIbv;
  struct Context;
  struct Pd;
  struct Mr;
  struct Channel;
  struct Cq;
  struct Srq;
  struct Qp;
  struct Wqe;
  struct Receive;
  enum class Step : uint8_t { kMoved, kWaits, kIdle };

  void Run();
  Step Progress(Qp& qp, Time now);
  bool Reachable(const Qp& qp, Qp*& remote);
  bool CheckLocal(const Qp& qp, const Wqe& wqe);
  bool IsRegistered(const Qp& qp, const ibv_sge& sge) const;
  // The request is a SEND.
  Step Send(Qp& qp, Qp& remote, Time now);
  Step NotReady(Qp& qp, Time now);
  Mr* CheckRemote(const Qp& remote, const Wqe& wqe, int access);
  // Where the memory is that a key names; of the host unless `gpu`.
  struct Place {
    uint64_t at = 0;
    bool gpu = false;
  };
  Place Find(uint32_t key, uint64_t address) const;
  // Bytes [from, from + bytes) of a request, in its direction. False: GPU memory is not there.
  bool Copy(const Wqe& wqe, uint64_t from, uint64_t bytes);
  bool Move(Place to, Place from, uint64_t bytes);
  Step End(Qp& qp, ibv_wc_status status, Time now);
  void Finish(Qp& qp, ibv_wc_status status);
  void SetError(Qp& qp);
  void GiveBackReceives(Time now);
  void Push(Cq& cq, const ibv_wc& wc, Time ready);
  void DeliverDelayed(Time now);
  void Enqueue(Cq& cq, const ibv_wc& wc);
  void CheckLimit(Srq& srq);
  void RaiseLocked(Context& context, const ibv_async_event& event);
  int Enter(Call call);
  // An index below `size`, and among the first of them; 0 where order is kept.
  size_t Any(size_t size);
  const FabricPort* OwnerOf(const ibv_gid& gid) const;
  FabricPort& Port(int device, uint8_t port);
  int Find(const std::string& device) const;
  template <typename Value>
  Value Locked(const Value& value) {
    std::lock_guard lock(mutex_);
    return value;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<FabricDevice> devices_;
  std::vector<Context*> contexts_;
  std::map<void*, void (*)(void*)> objects_;  // all that are not destroyed, and what frees them
  std::map<uint32_t, Qp*> qps_;
  std::unordered_map<uint32_t, Mr*> mrs_;
  uint32_t next_number_ = 17;
  uint32_t next_key_ = 1000;
  uint64_t overruns_ = 0, doorbells_ = 0, requests_ = 0, completions_ = 0, not_ready_ = 0,
           sends_ = 0;
  std::map<int, uint64_t> moved_;  // by device
  uint64_t lose_completions_ = 0, lose_acks_ = 0;
  uint64_t fail_writes_ = 0, fail_writes_from_ = 0;
  ibv_wc_status fail_writes_with_ = IBV_WC_SUCCESS;
  uint64_t fail_send_ = 0;  // counted down; 0: none
  bool fail_send_arrives_ = false;
  ibv_wc_status fail_send_with_ = IBV_WC_SUCCESS;
  std::optional<std::mt19937_64> random_;  // present: order is not kept
  Duration ack_delay_{};
  std::optional<Duration> receives_kept_;
  size_t look_ups_ = 0;
  Duration completion_delay_{};
  Duration registration_time_{};
  uint64_t most_gpu_bytes_ = UINT64_MAX;
  std::vector<std::byte> bounce_;  // on the way from GPU to GPU
  Duration retry_time_ = std::chrono::milliseconds(300);
  bool held_ = false;
  bool stop_ = false;
  uint64_t calls_[static_cast<size_t>(Call::kCount)] = {};
  struct Planned {
    Call call;
    uint64_t at;
    int error;
  };
  std::vector<Planned> planned_;
  struct Delayed {
    Time ready;
    Cq* cq;
    ibv_wc wc;
  };
  std::deque<Delayed> delayed_;
  std::thread thread_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_VERBS_FABRIC_H_
