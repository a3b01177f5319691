// End: opening, posting, polling and closing an endpoint.

#include "src/backends/libfabric/end.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/provider.h"
#include "src/core/base/log.h"

namespace kvxfer::libfabric {
namespace {

// True: an error of this kind may be caused by the op itself, and then repeats over every rail.
bool MayBeTheOp(int error) {
  constexpr std::array<int, 10> kOfOps = {FI_EINVAL,     FI_EACCES,   FI_EPERM,  FI_EFAULT,
                                          FI_EMSGSIZE,   FI_ENOKEY,   FI_ETRUNC, FI_EKEYREJECTED,
                                          FI_EOPNOTSUPP, FI_EREMOTEIO};
  return std::ranges::find(kOfOps, error) != kOfOps.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<End>> End::Open(const Domain* domain) {
  std::unique_ptr<End> end(new End(domain));
  if (absl::Status status = end->Make(); !status.ok()) return status;
  return end;
}

End::~End() { Close(); }

absl::Status End::Make() {
  const auto error = [&](std::string_view call, int64_t rc) {
    return FiError(absl::StrCat(domain_->Name(), ": ", ToAbsl(call)), rc);
  };
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_TABLE;
  fid_av* av = nullptr;
  int rc = fi_av_open(domain_->get(), &av_attr, &av, nullptr);
  if (rc != 0) return error("fi_av_open", rc);
  peers_.reset(av);
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_DATA;
  cq_attr.wait_obj = FI_WAIT_NONE;
  // Entries for every flight and every unreported immediate: the queue cannot overflow.
  cq_attr.size = kMaxFlights + kMaxUnheard;
  fid_cq* cq = nullptr;
  rc = fi_cq_open(domain_->get(), &cq_attr, &cq, nullptr);
  if (rc != 0) return error("fi_cq_open", rc);
  queue_.reset(cq);
  fid_ep* ep = nullptr;
  rc = fi_endpoint(domain_->get(), const_cast<fi_info*>(&domain_->info()), &ep, nullptr);
  if (rc != 0) return error("fi_endpoint", rc);
  endpoint_.reset(ep);
  // Some providers abort without an event queue, others do not accept one: the result is ignored.
  if (domain_->events() != nullptr) fi_ep_bind(ep, &domain_->events()->fid, 0);
  if (TakesGpuMemory(domain_->info())) {
    if (rc = KeepToTheDevice(ep); rc != 0) return error("fi_setopt(FI_OPT_FI_HMEM_P2P)", rc);
  }
  rc = fi_ep_bind(ep, &av->fid, 0);
  if (rc == 0) rc = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
  if (rc == 0) rc = fi_enable(ep);
  if (rc != 0) return error("fi_enable", rc);
  size_t bytes = 0;
  rc = fi_getname(&ep->fid, nullptr, &bytes);
  if (rc != 0 && rc != -FI_ETOOSMALL) return error("fi_getname", rc);
  address_.resize(bytes);
  rc = fi_getname(&ep->fid, address_.data(), &bytes);
  if (rc != 0) return error("fi_getname", rc);
  depth_ = std::min(kMaxFlights, domain_->info().tx_attr->size);
  return absl::OkStatus();
}

absl::Status End::SetPeer(const std::string& address) {
  const bool text = domain_->info().addr_format == FI_ADDR_STR;
  if (!text && address.size() != address_.size()) {
    return absl::InvalidArgumentError("the peer's endpoint has an address of another form");
  }
  // Providers look for the end of an address in text form.
  const std::string copy = address + '\0';
  const int inserted = fi_av_insert(peers_.get(), copy.data(), 1, &peer_, 0, nullptr);
  if (inserted == 1) return absl::OkStatus();
  return FiError(domain_->Name() + ": fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL);
}

absl::StatusOr<bool> End::Post(const Request& request) {
  if (in_flight() >= depth_) return false;
  if (free_.empty()) free_.push_back(&slots_.emplace_back());
  Slot* const slot = free_.back();
  fi_msg_rma message{};
  message.msg_iov = request.local.data();
  message.desc = request.descs.data();
  message.iov_count = request.local.size();
  message.addr = peer_;
  message.rma_iov = request.remote.data();
  message.rma_iov_count = request.remote.size();
  message.context = &slot->context;
  message.data = request.immediate.value_or(0);
  // A write completes only when its bytes are visible at the target: fences and Told depend on it.
  const uint64_t flags = FI_COMPLETION | (request.read ? 0 : FI_DELIVERY_COMPLETE) |
                         (request.immediate ? FI_REMOTE_CQ_DATA : 0);
  const ssize_t rc = request.read ? fi_readmsg(endpoint_.get(), &message, flags)
                                  : fi_writemsg(endpoint_.get(), &message, flags);
  // Not posted: the slot stays free.
  if (rc == -FI_EAGAIN) return false;
  if (rc != 0) return FiError(domain_->Name() + (request.read ? ": fi_read" : ": fi_write"), rc);
  free_.pop_back();
  slot->flight = request.flight;
  slot->used = true;
  return true;
}

std::optional<Flight> End::Take(void* context) {
  Slot* const slot = static_cast<Slot*>(context);
  if (!std::exchange(slot->used, false)) return std::nullopt;
  free_.push_back(slot);
  ++progress_;
  return slot->flight;
}

absl::Status End::Poll(size_t most, std::vector<Done>& out) {
  unread_ = false;
  for (size_t taken = 0; taken < most;) {
    std::array<fi_cq_data_entry, 16> entries;
    const ssize_t count =
        fi_cq_read(queue_.get(), entries.data(), std::min(entries.size(), most - taken));
    if (count == -FI_EAGAIN || count == 0) return absl::OkStatus();
    if (count == -FI_EAVAIL) {
      if (absl::Status status = ReadError(out); !status.ok()) return status;
      ++taken;
      continue;
    }
    if (count < 0) return FiError(domain_->Name() + ": fi_cq_read", count);
    for (const fi_cq_data_entry& entry : std::span(entries).first(static_cast<size_t>(count))) {
      // Neither flag is enough alone. An own op may be reported with FI_REMOTE_CQ_DATA, and efa
      // 1.17 reports a peer's write with FI_WRITE.
      const bool theirs = entry.op_context == nullptr || (entry.flags & FI_REMOTE_WRITE) != 0;
      if (theirs && (entry.flags & FI_REMOTE_CQ_DATA) != 0) {
        out.push_back({.immediate = static_cast<uint32_t>(entry.data)});
      } else if (entry.op_context != nullptr) {
        if (const auto flight = Take(entry.op_context)) out.push_back({.flight = *flight});
      }
    }
    taken += static_cast<size_t>(count);
  }
  unread_ = true;
  return absl::OkStatus();
}

absl::Status End::ReadError(std::vector<Done>& out) {
  fi_cq_err_entry entry{};
  const ssize_t rc = fi_cq_readerr(queue_.get(), &entry, 0);
  if (rc == -FI_EAGAIN) return absl::OkStatus();
  if (rc < 0) return FiError(domain_->Name() + ": fi_cq_readerr", rc);
  absl::Status why = absl::UnavailableError(absl::StrCat(
      domain_->Name(), ": ", fi_strerror(entry.err), " (provider: ",
      fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, nullptr, 0), ")"));
  // An error without a context is about something that the peer was not allowed to do.
  if (entry.op_context == nullptr) return why;
  if (const auto flight = Take(entry.op_context)) {
    out.push_back({.flight = *flight, .status = std::move(why), .maybe_op = MayBeTheOp(entry.err)});
  }
  return absl::OkStatus();
}

size_t End::CountOf(uint64_t transfer) const {
  return static_cast<size_t>(std::ranges::count_if(slots_, [transfer](const Slot& slot) {
    return slot.used && slot.flight.transfer == transfer;
  }));
}

void End::Drain(Time until, std::vector<Done>& out) {
  while (in_flight() > 0 && Now() < until) {
    if (!Poll(kMaxFlights, out).ok()) return;
  }
}

std::vector<Flight> End::Close() {
  if (endpoint_ != nullptr) {
    // After a failed fi_close nothing says whether the endpoint still exists. Providers free it
    // even then, so it is not closed a second time.
    const int rc = fi_close(&endpoint_.release()->fid);
    if (rc != 0) {
      Log(LogLevel::kError, "libfabric: {}; what its device has in hand may still move",
          ToStd(FiError(domain_->Name() + ": fi_close", rc).message()));
    }
  }
  // The endpoint uses both, so they are closed after it.
  queue_.reset();
  peers_.reset();
  std::vector<Flight> left;
  for (Slot& slot : slots_) {
    if (std::exchange(slot.used, false)) left.push_back(slot.flight);
  }
  free_.clear();
  slots_.clear();
  return left;
}

}  // namespace kvxfer::libfabric
