// Registrations with all domains, and the form of keys.

#include "src/backends/libfabric/regions.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::libfabric {
namespace {

// The version of the form, and the sizes of its parts.
constexpr std::byte kForm{1};
constexpr size_t kHeadBytes = 5;
constexpr size_t kEntryBytes = 9;

}  // namespace

absl::StatusOr<std::unique_ptr<LibfabricRegistration>> LibfabricRegistration::Make(
    const LocalRegion& region, std::span<const std::unique_ptr<Domain>> domains,
    Registrations* all) {
  std::unique_ptr<LibfabricRegistration> out(new LibfabricRegistration());
  const absl::Status status = region.span.kind == MemoryKind::kCuda
                                  ? Annotate(out->RegisterGpu(region, domains), "libfabric")
                                  : out->RegisterHost(region, domains);
  if (!status.ok()) return status;
  out->key = out->EncodeKey(region.rkey);
  out->all_ = all;
  all->Add(out.get());
  return out;
}

absl::Status LibfabricRegistration::RegisterHost(const LocalRegion& region,
                                                 std::span<const std::unique_ptr<Domain>> domains) {
  for (const auto& domain : domains) {
    absl::StatusOr<FiPtr<fid_mr>> mr = domain->Register(region.span, region.access);
    if (!mr.ok()) return mr.status();
    holds_.push_back({.mr = *std::move(mr), .by_address = domain->virtual_addresses()});
  }
  return absl::OkStatus();
}

absl::Status LibfabricRegistration::RegisterGpu(const LocalRegion& region,
                                                std::span<const std::unique_ptr<Domain>> domains) {
  absl::StatusOr<cuda::DirectSpan> span = cuda::ExamineDirect(region.span);
  if (!span.ok()) return span.status();
  for (const auto& domain : domains) {
    absl::StatusOr<FiPtr<fid_mr>> mr = domain->RegisterGpu(*span, region.access);
    if (!mr.ok()) return mr.status();
    holds_.push_back({.mr = *std::move(mr), .by_address = domain->virtual_addresses()});
  }
  // Only asks: what the arrival flusher holds belongs to the driver.
  if (absl::Status status = cuda::Flusher().Add(span->driver, span->device->ordinal);
      !status.ok()) {
    return status;
  }
  driver_ = span->driver;
  gpu_ = span->device;
  return absl::OkStatus();
}

LibfabricRegistration::~LibfabricRegistration() {
  if (all_ != nullptr) all_->Remove(this);
}

std::string LibfabricRegistration::EncodeKey(uint32_t rkey) const {
  std::vector<std::byte> out(kHeadBytes + holds_.size() * kEntryBytes);
  out[0] = kForm;
  wire::StoreLittle<uint32_t>(&out[1], rkey);
  std::byte* at = out.data() + kHeadBytes;
  for (const Hold& hold : holds_) {
    at[0] = std::byte{hold.by_address};
    wire::StoreLittle<uint64_t>(at + 1, fi_mr_key(hold.mr.get()));
    at += kEntryBytes;
  }
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

absl::StatusOr<std::unique_ptr<LibfabricRemoteKey>> LibfabricRemoteKey::Decode(
    const RemoteRegion& region, std::string_view key) {
  const auto bytes = std::as_bytes(std::span(key));
  if (bytes.size() < kHeadBytes || bytes[0] != kForm ||
      (bytes.size() - kHeadBytes) % kEntryBytes != 0 ||
      wire::LoadLittle<uint32_t>(&bytes[1]) != region.rkey) {
    return absl::InvalidArgumentError(absl::StrCat(
        "libfabric: the key of region ", static_cast<uint32_t>(region.id),
        " in the peer's metadata is damaged, or of another registration; take the metadata again"));
  }
  auto out = std::make_unique<LibfabricRemoteKey>();
  out->base_ = region.base;
  for (size_t at = kHeadBytes; at < bytes.size(); at += kEntryBytes) {
    out->entries_.push_back({.by_address = bytes[at] != std::byte{0},
                             .key = wire::LoadLittle<uint64_t>(&bytes[at + 1])});
  }
  return out;
}

}  // namespace kvxfer::libfabric
