#include "src/backends/verbs/regions.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/errors.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/net/bytes.h"

namespace kvxfer::verbs {
namespace {

// Without penalties, and with.
constexpr std::byte kPlainForm{1};
constexpr std::byte kForm{2};
constexpr size_t kHeadBytes = 5;
constexpr size_t kEntryBytes = 5;
// The penalty stands above the number.
constexpr unsigned kPenaltyShift = 6;
static_assert(kMaxDevices == 1 << kPenaltyShift && kMaxPenalty < 4);
// Pinning costs about 0.1 ms a MiB of small pages; a thread costs less than this takes.
constexpr size_t kParallelBytes = 16 * 1024 * 1024;

int AccessFlags(Access access) {
  int flags = IBV_ACCESS_LOCAL_WRITE;
  if (Allows(access, Access::kRemoteRead)) flags |= IBV_ACCESS_REMOTE_READ;
  if (Allows(access, Access::kRemoteWrite)) flags |= IBV_ACCESS_REMOTE_WRITE;
  return flags;
}

}  // namespace

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  Close();
  holds_ = std::exchange(other.holds_, {});
  why_missing_ = std::move(other.why_missing_);
  return *this;
}

void DeviceMemory::Close() {
  for (const Hold& hold : std::exchange(holds_, {})) {
    const size_t bytes = hold.mr->length;
    const int error = hold.device->ibv().DeregMr(hold.mr);
    if (error == 0) continue;
    Log(LogLevel::kError, "verbs: {}: a region of {} bytes stays reachable: {}",
        hold.device->name(), bytes, ErrnoText("ibv_dereg_mr", error));
  }
}

absl::Status DeviceMemory::Register(const MemorySpan& span, Access access,
                                    std::span<const std::unique_ptr<Device>> devices) {
  const int flags = AccessFlags(access);
  std::vector<std::pair<ibv_mr*, int>> made(devices.size());
  const auto one = [&](size_t i) {
    if (devices[i]->broken()) {
      made[i].second = EIO;
      return;
    }
    made[i].first = devices[i]->Register(span.data, span.bytes, flags);
    made[i].second = errno;
  };
  if (devices.size() > 1 && span.bytes >= kParallelBytes) {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < devices.size(); ++i) {
      try {
        threads.emplace_back(one, i);
      } catch (const std::system_error&) {
        one(i);  // as many threads as this process may have
      }
    }
  } else {
    for (size_t i = 0; i < devices.size(); ++i) one(i);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (made[i].first == nullptr) {
      const absl::Status why = devices[i]->broken()
                                   ? devices[i]->why_broken()
                                   : RegistrationError(devices[i]->name(), span, made[i].second);
      why_missing_ = why_missing_.ok()
                         ? why
                         : absl::Status(why_missing_.code(),
                                        absl::StrCat(why_missing_.message(), "; ", why.message()));
      continue;
    }
    holds_.push_back({devices[i].get(), made[i].first});
  }
  return holds_.empty() ? why_missing_ : absl::OkStatus();
}

VerbsRegistration::VerbsRegistration(VerbsBackend* backend, uint32_t rkey, DeviceMemory memory,
                                     RegionId id, const Penalties& penalties)
    : backend_(backend), rkey_(rkey), id_(id), penalties_(penalties), memory_(std::move(memory)) {
  for (const DeviceMemory::Hold& hold : memory_.holds()) {
    lkeys_[hold.device->ordinal()] = hold.mr->lkey;
    rkeys_[hold.device->ordinal()] = hold.mr->rkey;
    devices_ |= uint64_t{1} << hold.device->ordinal();
  }
}

VerbsRegistration::~VerbsRegistration() {
  if (backend_ != nullptr) backend_->Forget(this);
}

void VerbsRegistration::Close() {
  memory_.Close();
  backend_ = nullptr;
}

std::string VerbsRegistration::Key() const {
  const std::span<const DeviceMemory::Hold> holds = memory_.holds();
  std::vector<std::byte> out(kHeadBytes + holds.size() * kEntryBytes);
  const bool plain = std::ranges::all_of(holds, [this](const DeviceMemory::Hold& hold) {
    return penalty(hold.device->ordinal()) == 0;
  });
  out[0] = plain ? kPlainForm : kForm;
  net::Put32(&out[1], rkey_);
  for (size_t i = 0; i < holds.size(); ++i) {
    std::byte* const at = &out[kHeadBytes + i * kEntryBytes];
    const size_t device = holds[i].device->ordinal();
    at[0] = static_cast<std::byte>(device | penalty(device) << kPenaltyShift);
    net::Put32(at + 1, holds[i].mr->rkey);
  }
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

absl::StatusOr<std::unique_ptr<VerbsRemoteKey>> VerbsRemoteKey::Decode(const RemoteRegion& region,
                                                                       std::string_view key) {
  const auto bytes = std::as_bytes(std::span(key));
  if (!bytes.empty() && bytes[0] != kPlainForm && bytes[0] != kForm) {
    return absl::InvalidArgumentError(
        absl::StrCat("verbs: the key of region ", static_cast<uint32_t>(region.id), " has form ",
                     std::to_integer<int>(bytes[0]),
                     ", which is not known here; use the same kvxfer version on both sides"));
  }
  if (bytes.size() < kHeadBytes || (bytes.size() - kHeadBytes) % kEntryBytes != 0 ||
      net::Get32(&bytes[1]) != region.rkey) {
    return absl::InvalidArgumentError(absl::StrCat(
        "verbs: the key of region ", static_cast<uint32_t>(region.id),
        " in the peer's metadata is damaged, or of another registration; take the metadata again"));
  }
  auto out = std::make_unique<VerbsRemoteKey>();
  for (size_t at = kHeadBytes; at < bytes.size(); at += kEntryBytes) {
    const auto device = std::to_integer<size_t>(bytes[at]) % kMaxDevices;
    const auto penalty = std::to_integer<unsigned>(bytes[at]) >> kPenaltyShift;
    out->penalties_[device] = static_cast<uint8_t>(std::min(penalty, kMaxPenalty));
    out->rkeys_[device] = net::Get32(&bytes[at + 1]);
    out->devices_ |= uint64_t{1} << device;
  }
  return out;
}

}  // namespace kvxfer::verbs
