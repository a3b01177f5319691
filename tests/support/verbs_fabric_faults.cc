// Devices in memory: what goes wrong, and what happened.
#include <algorithm>
#include <iterator>

#include "tests/support/verbs_fabric.h"
#include "tests/support/verbs_fabric_objects.h"

namespace kvxfer::testing {

const char* CallName(Call call) {
  constexpr const char* kNames[] = {
      "ListDevices",   "Open",           "Close",     "QueryDevice", "QueryPort",     "QueryGid",
      "QueryPkey",     "AllocPd",        "DeallocPd", "RegMr",       "RegDmabufMr",   "DeregMr",
      "CreateChannel", "DestroyChannel", "CreateCq",  "DestroyCq",   "CreateSrq",     "ArmSrqLimit",
      "DestroySrq",    "CreateQp",       "ModifyQp",  "DestroyQp",   "PostSend",      "PostRecv",
      "PostSrqRecv",   "PollCq",         "ReqNotify", "NextCqEvent", "NextAsyncEvent"};
  static_assert(std::size(kNames) == static_cast<size_t>(Call::kCount));
  return kNames[static_cast<size_t>(call)];
}

void VerbsFabric::FailCall(Call call, uint64_t n, int error) {
  std::lock_guard lock(mutex_);
  planned_.push_back({call, calls_[static_cast<size_t>(call)] + n, error});
}

uint64_t VerbsFabric::calls(Call call) {
  std::lock_guard lock(mutex_);
  return calls_[static_cast<size_t>(call)];
}

void VerbsFabric::SetPort(const std::string& device, uint8_t port, bool up, bool tell) {
  std::lock_guard lock(mutex_);
  const int index = Find(device);
  Port(index, port).state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  for (Context* context : contexts_) {
    if (!tell || context->index != index) continue;
    RaiseLocked(*context, {.element = {.port_num = port},
                           .event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR});
  }
  wake_.notify_all();
}

void VerbsFabric::SetNetwork(const std::string& device, uint8_t port, int network) {
  std::lock_guard lock(mutex_);
  Port(Find(device), port).network = network;
  wake_.notify_all();
}

void VerbsFabric::Raise(const std::string& device, ibv_event_type type, uint8_t port) {
  std::lock_guard lock(mutex_);
  const bool of_queue_pairs =
      type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR;
  for (Context* context : contexts_) {
    if (context->index != Find(device)) continue;
    if (!of_queue_pairs) RaiseLocked(*context, {.element = {.port_num = port}, .event_type = type});
    for (const auto& [number, qp] : qps_) {
      if (!of_queue_pairs || qp->context != context) continue;
      SetError(*qp);
      RaiseLocked(*context, {.element = {.qp = qp}, .event_type = type});
    }
  }
  wake_.notify_all();
}

void VerbsFabric::Change(const std::string& device, uint8_t port,
                         const std::function<void(FabricPort&)>& how) {
  std::lock_guard lock(mutex_);
  how(Port(Find(device), port));
  wake_.notify_all();
}

void VerbsFabric::LoseCompletions(uint64_t n) {
  std::lock_guard lock(mutex_);
  lose_completions_ = n;
}

void VerbsFabric::LoseAcks(uint64_t n) {
  std::lock_guard lock(mutex_);
  lose_acks_ = n;
}

void VerbsFabric::DelayCompletions(Duration delay) {
  std::lock_guard lock(mutex_);
  completion_delay_ = delay;
}

void VerbsFabric::DelayAcks(Duration delay) {
  std::lock_guard lock(mutex_);
  ack_delay_ = delay;
}

void VerbsFabric::FailWrites(uint64_t n, uint64_t bytes, ibv_wc_status status) {
  std::lock_guard lock(mutex_);
  fail_writes_ = n;
  fail_writes_from_ = bytes;
  fail_writes_with_ = status;
}

void VerbsFabric::FailSend(uint64_t n, bool arrives, ibv_wc_status status) {
  std::lock_guard lock(mutex_);
  fail_send_ = n;
  fail_send_arrives_ = arrives;
  fail_send_with_ = status;
}

void VerbsFabric::KeepReceives(Duration time) {
  std::lock_guard lock(mutex_);
  receives_kept_ = time;
  wake_.notify_all();
}

void VerbsFabric::Reorder(uint64_t seed) {
  std::lock_guard lock(mutex_);
  random_.emplace(seed);
}

void VerbsFabric::SetRegistrationTime(Duration time) {
  std::lock_guard lock(mutex_);
  registration_time_ = time;
}

void VerbsFabric::RefuseGpuMemoryAbove(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  most_gpu_bytes_ = bytes;
}

void VerbsFabric::Hold(bool held) {
  std::lock_guard lock(mutex_);
  held_ = held;
  wake_.notify_all();
}

void VerbsFabric::SetLookUp(const std::string& device, uint8_t port, Duration time, int error) {
  std::lock_guard lock(mutex_);
  FabricPort& of = Port(Find(device), port);
  of.look_up = time;
  of.look_up_error = error;
}

void VerbsFabric::RefuseDestroy(const std::string& device, bool refuses) {
  std::lock_guard lock(mutex_);
  devices_[static_cast<size_t>(Find(device))].refuses_destroy = refuses;
}

void VerbsFabric::SetRetryTime(Duration time) {
  std::lock_guard lock(mutex_);
  retry_time_ = time;
}

size_t VerbsFabric::live_objects() {
  std::lock_guard lock(mutex_);
  return objects_.size();
}
std::vector<int> VerbsFabric::region_rights() {
  std::lock_guard lock(mutex_);
  std::vector<int> rights;
  for (const auto& [key, mr] : mrs_) rights.push_back(mr->access);
  return rights;
}
size_t VerbsFabric::queue_pairs(const std::string& device) {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::ranges::count_if(qps_, [&](const auto& entry) {
    return static_cast<Context*>(entry.second->context)->index == Find(device);
  }));
}

size_t VerbsFabric::own_receives(const std::string& device) {
  std::lock_guard lock(mutex_);
  size_t receives = 0;
  for (const auto& [number, qp] : qps_) {
    if (static_cast<Context*>(qp->context)->index == Find(device)) receives += qp->receives.size();
  }
  return receives;
}

uint64_t VerbsFabric::moved(const std::string& device) {
  std::lock_guard lock(mutex_);
  return moved_[Find(device)];
}

}  // namespace kvxfer::testing
