#include "src/backends/verbs/regions.h"

#include <algorithm>
#include <cerrno>
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

constexpr std::byte kForm{1};
constexpr size_t kHeadBytes = 5;
constexpr size_t kEntryBytes = 5;
// Pinning costs about 0.1 ms a MiB of small pages; a thread costs less than this takes.
constexpr size_t kParallelBytes = 16 * 1024 * 1024;

int AccessFlags(Access access) {
  int flags = IBV_ACCESS_LOCAL_WRITE;
  if (Allows(access, Access::kRemoteRead)) flags |= IBV_ACCESS_REMOTE_READ;
  if (Allows(access, Access::kRemoteWrite)) flags |= IBV_ACCESS_REMOTE_WRITE;
  return flags;
}

}  // namespace

VerbsRegistration::~VerbsRegistration() {
  if (backend_ != nullptr) backend_->Forget(this);
  Close();
}

void VerbsRegistration::Close() {
  for (const Hold& hold : std::exchange(holds_, {})) {
    const int error = hold.device->ibv().DeregMr(hold.mr);
    if (error == 0) continue;
    Log(LogLevel::kError, "verbs: {}: a region of {} bytes stays reachable: {}",
        hold.device->name(), region_.span.bytes, ErrnoText("ibv_dereg_mr", error));
  }
  backend_ = nullptr;
}

absl::Status VerbsRegistration::Register(std::span<const std::unique_ptr<Device>> devices) {
  const int flags = AccessFlags(region_.access);
  std::vector<std::pair<ibv_mr*, int>> made(devices.size());
  const auto one = [&](size_t i) {
    if (devices[i]->broken()) return;
    made[i].first = devices[i]->Register(region_.span.data, region_.span.bytes, flags);
    made[i].second = errno;
  };
  if (devices.size() > 1 && region_.span.bytes >= kParallelBytes) {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < devices.size(); ++i) threads.emplace_back(one, i);
  } else {
    for (size_t i = 0; i < devices.size(); ++i) one(i);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (made[i].first == nullptr) {
      const absl::Status why =
          devices[i]->broken()
              ? devices[i]->why_broken()
              : RegistrationError(devices[i]->name(), region_.span, made[i].second);
      why_missing_ = why_missing_.ok()
                         ? why
                         : absl::Status(why_missing_.code(),
                                        absl::StrCat(why_missing_.message(), "; ", why.message()));
      continue;
    }
    holds_.push_back({devices[i].get(), made[i].first});
    lkeys_[devices[i]->ordinal()] = made[i].first->lkey;
    rkeys_[devices[i]->ordinal()] = made[i].first->rkey;
    devices_ |= uint64_t{1} << devices[i]->ordinal();
  }
  return holds_.empty() ? why_missing_ : absl::OkStatus();
}

std::string VerbsRegistration::Key() const {
  std::vector<std::byte> out(kHeadBytes + holds_.size() * kEntryBytes);
  out[0] = kForm;
  net::Put32(&out[1], region_.rkey);
  for (size_t i = 0; i < holds_.size(); ++i) {
    std::byte* const at = &out[kHeadBytes + i * kEntryBytes];
    at[0] = static_cast<std::byte>(holds_[i].device->ordinal());
    net::Put32(at + 1, holds_[i].mr->rkey);
  }
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

absl::StatusOr<std::unique_ptr<VerbsRemoteKey>> VerbsRemoteKey::Decode(const RemoteRegion& region,
                                                                       std::string_view key) {
  const auto bytes = std::as_bytes(std::span(key));
  if (bytes.size() < kHeadBytes || bytes[0] != kForm ||
      (bytes.size() - kHeadBytes) % kEntryBytes != 0 || net::Get32(&bytes[1]) != region.rkey) {
    return absl::InvalidArgumentError(absl::StrCat(
        "verbs: the key of region ", static_cast<uint32_t>(region.id),
        " in the peer's metadata is damaged, or of another registration; take the metadata again"));
  }
  auto out = std::make_unique<VerbsRemoteKey>();
  for (size_t at = kHeadBytes; at < bytes.size(); at += kEntryBytes) {
    const auto device = std::to_integer<size_t>(bytes[at]);
    if (device >= kMaxDevices) return absl::InvalidArgumentError("verbs: a key of no device");
    out->rkeys_[device] = net::Get32(&bytes[at + 1]);
    out->devices_ |= uint64_t{1} << device;
  }
  return out;
}

}  // namespace kvxfer::verbs
