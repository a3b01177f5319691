// The keys that peers receive; regions.h describes the encoding.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/regions.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::verbs {
namespace {

// Without penalties, with penalties, and in parts.
constexpr std::byte kPlainForm{1};
constexpr std::byte kForm{2};
constexpr std::byte kPartsForm{3};
constexpr size_t kHeadBytes = 5;
constexpr size_t kEntryBytes = 5;
constexpr size_t kPartsHeadBytes = kHeadBytes + 5;
constexpr size_t kStretchBytes = 12;
constexpr size_t kKeyBytes = 4;
// The limit of metadata (src/core/protocol/metadata.cc).
constexpr size_t kMaxKeyBytes = 64 * 1024;
// The penalty is in the bits above the number.
constexpr unsigned kPenaltyShift = 6;
static_assert(kMaxDevices == 1 << kPenaltyShift && kMaxPenalty < 4);

// Equal parts that follow each other.
struct Stretch {
  uint32_t parts = 0;
  uint64_t bytes = 0;  // of each part
};

std::vector<Stretch> StretchesOf(const PartTable& table) {
  std::vector<Stretch> out;
  uint64_t from = table.base();
  for (size_t i = 0; i < table.size(); ++i) {
    const uint64_t bytes = table.end(i) - std::exchange(from, table.end(i));
    if (out.empty() || out.back().bytes != bytes) out.push_back({.bytes = bytes});
    ++out.back().parts;
  }
  return out;
}

size_t BytesOf(size_t devices, size_t stretches, size_t parts) {
  return kPartsHeadBytes + devices + stretches * kStretchBytes + devices * parts * kKeyBytes;
}

}  // namespace

absl::Status CheckKeyBytes(const PartTable& parts, size_t devices) {
  const size_t bytes = BytesOf(devices, StretchesOf(parts).size(), parts.size());
  if (bytes <= kMaxKeyBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "verbs: GPU memory of ", parts.size(), " allocations, which the ", devices,
      " RDMA devices take one by one: its key would have ", bytes, " bytes, more than ",
      kMaxKeyBytes, "; register it as several regions, or use fewer devices (verbs.devices)"));
}

std::string VerbsRegistration::MakeKey(uint32_t rkey) const {
  std::vector<std::byte> out = memory_.parts() == nullptr ? KeyOfOne() : KeyOfParts();
  wire::StoreLittle<uint32_t>(&out[1], rkey);
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

std::byte VerbsRegistration::DeviceByte(const Device& device) const {
  const size_t number = device.ordinal();
  return static_cast<std::byte>(number | penalty(number) << kPenaltyShift);
}

std::vector<std::byte> VerbsRegistration::KeyOfOne() const {
  const std::span<const DeviceMemory::Hold> holds = memory_.holds();
  std::vector<std::byte> out(kHeadBytes + holds.size() * kEntryBytes);
  const bool plain = std::ranges::all_of(holds, [this](const DeviceMemory::Hold& hold) {
    return penalty(hold.device->ordinal()) == 0;
  });
  out[0] = plain ? kPlainForm : kForm;
  for (size_t i = 0; i < holds.size(); ++i) {
    std::byte* const at = &out[kHeadBytes + i * kEntryBytes];
    at[0] = DeviceByte(*holds[i].device);
    wire::StoreLittle<uint32_t>(at + 1, holds[i].mr->rkey);
  }
  return out;
}

std::vector<std::byte> VerbsRegistration::KeyOfParts() const {
  const PartTable& parts = *memory_.parts();
  const std::vector<DeviceMemory::Known> devices = memory_.ByDevice();
  const std::vector<Stretch> stretches = StretchesOf(parts);
  std::vector<std::byte> out(BytesOf(devices.size(), stretches.size(), parts.size()));
  out[0] = kPartsForm;
  out[kHeadBytes] = static_cast<std::byte>(devices.size());
  wire::StoreLittle<uint32_t>(&out[kHeadBytes + 1], static_cast<uint32_t>(stretches.size()));
  std::byte* at = &out[kPartsHeadBytes];
  for (const DeviceMemory::Known& known : devices) *at++ = DeviceByte(*known.device);
  for (const Stretch& stretch : stretches) {
    wire::StoreLittle<uint32_t>(at, stretch.parts);
    wire::StoreLittle<uint64_t>(at + 4, stretch.bytes);
    at += kStretchBytes;
  }
  for (const DeviceMemory::Known& known : devices) {
    for (const uint32_t key : known.rkeys) {
      wire::StoreLittle<uint32_t>(at, key);
      at += kKeyBytes;
    }
  }
  return out;
}

absl::StatusOr<std::unique_ptr<VerbsRemoteKey>> VerbsRemoteKey::Decode(const RemoteRegion& region,
                                                                       std::string_view key) {
  const auto bytes = std::as_bytes(std::span(key));
  if (!bytes.empty() && (bytes[0] < kPlainForm || bytes[0] > kPartsForm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("verbs: the key of region ", static_cast<uint32_t>(region.id), " has form ",
                     std::to_integer<int>(bytes[0]),
                     ", which is not known here; use the same kvxfer version on both sides"));
  }
  auto out = std::make_unique<VerbsRemoteKey>();
  bool whole = bytes.size() >= kHeadBytes && wire::LoadLittle<uint32_t>(&bytes[1]) == region.rkey;
  if (whole && bytes[0] == kPartsForm) {
    whole = out->DecodeParts(region, bytes.subspan(kHeadBytes));
  } else if (whole) {
    whole = (bytes.size() - kHeadBytes) % kEntryBytes == 0;
    for (size_t at = kHeadBytes; whole && at < bytes.size(); at += kEntryBytes) {
      out->rkeys_[out->AddDevice(bytes[at])] = wire::LoadLittle<uint32_t>(&bytes[at + 1]);
    }
  }
  if (whole) return out;
  return absl::InvalidArgumentError(absl::StrCat(
      "verbs: the key of region ", static_cast<uint32_t>(region.id),
      " in the peer's metadata is damaged, or of another registration; take the metadata again"));
}

size_t VerbsRemoteKey::AddDevice(std::byte told) {
  const auto device = std::to_integer<size_t>(told) % kMaxDevices;
  const auto penalty = std::to_integer<unsigned>(told) >> kPenaltyShift;
  penalties_[device] = static_cast<uint8_t>(std::min(penalty, kMaxPenalty));
  devices_ |= uint64_t{1} << device;
  return device;
}

bool VerbsRemoteKey::DecodeParts(const RemoteRegion& region, std::span<const std::byte> bytes) {
  constexpr size_t kHead = kPartsHeadBytes - kHeadBytes;
  if (bytes.size() < kHead) return false;
  const auto devices = std::to_integer<size_t>(bytes[0]);
  const size_t stretches = wire::LoadLittle<uint32_t>(&bytes[1]);
  // At most this many parts can have keys in `bytes`: checked before memory is allocated for them.
  const size_t most = devices == 0 ? 0 : bytes.size() / (devices * kKeyBytes);
  if (devices > kMaxDevices || stretches > most) return false;
  if (bytes.size() < kHead + devices + stretches * kStretchBytes) return false;
  std::vector<uint64_t> parts;
  uint64_t left = region.bytes;
  for (size_t i = 0; i < stretches; ++i) {
    const std::byte* const at = &bytes[kHead + devices + i * kStretchBytes];
    const uint64_t count = wire::LoadLittle<uint32_t>(at);
    const uint64_t of_each = wire::LoadLittle<uint64_t>(at + 4);
    if (count == 0 || of_each == 0 || count > most - parts.size() || of_each > left / count) {
      return false;
    }
    parts.insert(parts.end(), count, of_each);
    left -= count * of_each;
  }
  const size_t expected = BytesOf(devices, stretches, parts.size()) - kHeadBytes;
  if (left != 0 || parts.empty() || bytes.size() != expected) return false;
  parts_ = std::make_unique<PartKeys>(PartTable(region.base, parts));
  const std::byte* at = &bytes[kHead + devices + stretches * kStretchBytes];
  for (size_t i = 0; i < devices; ++i) {
    std::vector<uint32_t> keys;
    for (size_t part = 0; part < parts.size(); ++part, at += kKeyBytes) {
      keys.push_back(wire::LoadLittle<uint32_t>(at));
    }
    parts_->Add(AddDevice(bytes[kHead + i]), keys);
  }
  return true;
}

}  // namespace kvxfer::verbs
