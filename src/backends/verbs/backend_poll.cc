// VerbsBackend: its turns: completions, control streams, device events, timers.

#include <endian.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/accepted.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

// The most completions of one queue in one turn.
constexpr size_t kPollBatch = 64;

}  // namespace

// Completions are in memory, so the most likely input takes no system call.
size_t VerbsBackend::Poll(std::span<Event> out, Input input) {
  messages_.Forget();
  if (hub_.Begin(out, input == Input::kAll)) {
    for (const auto& device : devices_) {
      device->OnChannel();
      device->OnAsync();
    }
    // Another device goes first each time, so that a busy one does not starve the others.
    for (size_t i = 0; i < devices_.size() && !hub_.sink().full(); ++i) {
      devices_[next_device_]->Poll(kPollBatch);
      next_device_ = (next_device_ + 1) % devices_.size();
    }
    setups_.Work();
    hub_.Work();
  }
  // After the last look at completions: what they say of a region is shown as its memory needs.
  TakeAdded();
  bool changed = false;
  for (const auto& device : devices_) changed = device->TakeChanged() || changed;
  if (changed) DescribePorts();
  const size_t events = hub_.End();
  return arrival_flusher_.Show(out.first(events), "verbs");
}

bool VerbsBackend::Arm() {
  if (hub_.HasWork() || setups_.HasWork()) return false;
  if (std::ranges::any_of(devices_, [](const auto& device) { return device->HasEvents(); })) {
    return false;
  }
  for (const auto& device : devices_) device->Arm();
  // Completions that came before the queues were armed raise no event, so poll once more.
  bool quiet = true;
  for (const auto& device : devices_) quiet = device->Poll(kPollBatch) == 0 && quiet;
  // A device may have broken just now; then only a timer ends what was posted to it. If this
  // returns false, no timer is needed.
  hub_.SetTimer();
  return quiet && !hub_.sink().waiting();
}

void VerbsBackend::OnSendDone(Device&, const ibv_wc& wc) {
  const WorkId id = WorkId::Decode(wc.wr_id);
  if (id.slot >= slots_.size() || slots_[id.slot].owner == nullptr) return;  // of an earlier life
  slots_[id.slot].owner->OnDone(id, wc);
}

void VerbsBackend::OnReceived(Device& device, const ibv_wc& wc) {
  const auto it = receivers_.find(ReceiverId(wc.qp_num, device));
  if (it == receivers_.end()) return;  // of a queue pair that was destroyed
  const Receiver receiver = it->second;
  if (wc.status != IBV_WC_SUCCESS) {
    receiver.endpoint->OnQueuePair(device, wc.qp_num,
                                   CompletionError(receiver.endpoint->Describe().path, wc.qp_num,
                                                   "a receive", wc.status, wc.vendor_err));
    return;
  }
  if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) return;
  receiver.endpoint->OnImmediate(receiver.rail, be32toh(wc.imm_data));
}

void VerbsBackend::OnAsync(Device& device, const Device::DeviceEvent& event) {
  switch (event.type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      const uint32_t number = event.queue_pair;
      const absl::Status why = absl::UnavailableError(absl::StrCat(
          device.name(), ", queue pair ", number, ": ", ToAbsl(EventName(event.type))));
      for (VerbsEndpoint* endpoint : Endpoints()) endpoint->OnQueuePair(device, number, why);
      return;
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
      return OnPortEvent(device, event);
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      Log(LogLevel::kError, "verbs: device {} is broken: {}", device.name(), EventName(event.type));
      return device.Break(EventName(event.type));
    default:
      Log(LogLevel::kDebug, "verbs: device {}: event {} is passed over", device.name(),
          static_cast<int>(event.type));
  }
}

// A port whose address changed (GID or LID) is treated like one that went down. A table that
// changed in other places does not affect its queue pairs.
void VerbsBackend::OnPortEvent(Device& device, const Device::DeviceEvent& event) {
  const uint8_t number = event.port;
  Log(LogLevel::kInfo, "verbs: port {}:{}: {}", device.name(), number, EventName(event.type));
  bool same = false;
  for (const PortRef& ref : ports_) {
    if (ref.device != &device || ref.port().number != number) continue;
    const LocalPort before = ref.port();
    const absl::Status status = device.Refresh(ref.index);
    const LocalPort& now = ref.port();
    same = status.ok() && now.active && now.info == before.info &&
           now.gid_index == before.gid_index && now.pkey_index == before.pkey_index &&
           now.p_key == before.p_key;
  }
  const bool changes = event.type != IBV_EVENT_PORT_ERR && event.type != IBV_EVENT_PORT_ACTIVE;
  if (changes && same) return;
  for (VerbsEndpoint* endpoint : Endpoints()) endpoint->OnPort(device, number, event.type);
}

void VerbsBackend::OnBroken(Device& device, const absl::Status& why) {
  for (VerbsEndpoint* endpoint : Endpoints()) endpoint->OnBroken(device, why);
}

}  // namespace kvxfer::verbs
