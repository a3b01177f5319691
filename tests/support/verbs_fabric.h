// RDMA devices in memory: the seam of the verbs backend (src/backends/verbs/ibv.h) without a NIC,
// for any number of agents of one process, each with an Ibv of its own.
//
// Semantics are those of reliable connected queue pairs: order within a pair, completions, rkeys
// with rights and bounds, receives out of a shared queue and RNR where it is empty, error states
// that flush, retries that end. One thread stands for the hardware; every byte moves under the
// fabric's lock, so whoever sees a completion, or has put a queue pair into error or destroyed it,
// has seen what landed before. Each call can be made to fail, and links to break.
//
// Thread-safety: all of it, from any thread. Outlives every Ibv that it made.
#ifndef KVXFER_TESTS_SUPPORT_VERBS_FABRIC_H_
#define KVXFER_TESTS_SUPPORT_VERBS_FABRIC_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kvxfer/types.h"
#include "src/backends/verbs/ibv.h"
#include "src/core/clock.h"

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
};

struct FabricDevice {
  std::string name;
  std::vector<FabricPort> ports;
  int max_cqe = 32767;
  int max_qp_wr = 16384;
  int max_sge = 16;
  int max_srq_wr = 16384;
  uint32_t max_inline = 220;
  std::string host{};  // whose it is: the name of an agent; empty: everybody's
};

// A RoCE v2 port at 10.77.`subnet`.`host`, with the sparse GID table of such a port.
FabricPort RocePort(uint8_t subnet, uint8_t host);
FabricPort InfinibandPort(uint16_t lid, uint64_t subnet_prefix = 0xfe80000000000000);

enum class Call : uint8_t {
  kListDevices,
  kOpen,
  kQueryDevice,
  kQueryPort,
  kQueryGid,
  kQueryPkey,
  kAllocPd,
  kRegMr,
  kDeregMr,
  kCreateChannel,
  kCreateCq,
  kCreateSrq,
  kArmSrqLimit,
  kCreateQp,
  kModifyQp,
  kDestroyQp,
  kPostSend,
  kPostSrqRecv,
  kPollCq,
  kReqNotify,
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
  void Raise(const std::string& device, ibv_event_type type, uint8_t port);
  // The next `n` signalled send requests are executed, and no completion comes: as if the device
  // had forgotten them.
  void LoseCompletions(uint64_t n);
  // The next `n` signalled send requests are executed, and fail at the initiator as if every
  // acknowledgement had been lost.
  void LoseAcks(uint64_t n);
  void DelayCompletions(Duration delay);
  // So long each registration of memory takes.
  void SetRegistrationTime(Duration time);
  // Nothing moves while held.
  void Hold(bool held);
  // How long an unreachable peer is tried: what timeout and retry_count stand for.
  void SetRetryTime(Duration time);

  // --- what happened ---
  // Contexts, domains, regions, queues and channels that are not destroyed.
  size_t live_objects();
  uint64_t overruns();     // of completion queues
  uint64_t doorbells();    // calls of PostSend
  uint64_t requests();     // work requests in them
  uint64_t completions();  // entries of completion queues made
  uint64_t not_ready();    // writes with immediate that met an empty receive queue

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
  enum class Step : uint8_t { kMoved, kWaits, kIdle };

  void Run();
  Step Progress(Qp& qp, Time now);
  bool Reachable(const Qp& qp, Qp*& remote);
  bool CheckLocal(const Qp& qp, const Wqe& wqe);
  Mr* CheckRemote(const Qp& remote, const Wqe& wqe, int access);
  void Copy(const Wqe& wqe, uint64_t from, uint64_t bytes);
  void Finish(Qp& qp, ibv_wc_status status);
  void SetError(Qp& qp);
  void Push(Cq& cq, const ibv_wc& wc, Time ready);
  void DeliverDelayed(Time now);
  void Enqueue(Cq& cq, const ibv_wc& wc);
  void RaiseLocked(Context& context, const ibv_async_event& event);
  int Enter(Call call);
  FabricPort& Port(int device, uint8_t port);
  int Find(const std::string& device) const;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<FabricDevice> devices_;
  std::vector<Context*> contexts_;
  std::map<uint32_t, Qp*> qps_;
  std::unordered_map<uint32_t, Mr*> mrs_;
  uint32_t next_number_ = 17;
  uint32_t next_key_ = 1000;
  size_t live_ = 0;
  uint64_t overruns_ = 0, doorbells_ = 0, requests_ = 0, completions_ = 0, not_ready_ = 0;
  uint64_t lose_completions_ = 0, lose_acks_ = 0;
  Duration completion_delay_{};
  Duration registration_time_{};
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
