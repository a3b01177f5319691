#include "src/core/protocol/metadata.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/core/protocol/codec.h"
#include "src/core/protocol/metadata.pb.h"
#include "src/core/protocol/metadata_kv.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {
namespace {

// Envelope: magic, u32 version, u32 protobuf bytes, u64 XXH3-64 of the protobuf; little-endian. The
// hash detects damage; it does not authenticate.
constexpr std::string_view kMagic = "KVXM";
constexpr uint32_t kEnvelopeVersion = 1;
constexpr size_t kHeaderBytes = 20;
constexpr size_t kMaxProtoBytes = kMaxMetadataBytes - kHeaderBytes;

constexpr size_t kMaxAddressBytes = 64 * 1024;  // limit for a backend's address and a region's key

template <typename Value>
Value LoadLittle(std::string_view in) {
  return wire::LoadLittle<Value>(std::as_bytes(std::span(in)).data());
}

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("metadata: ", field, ": ", what));
}

absl::Status CheckSize(absl::string_view field, std::string_view value, size_t min, size_t max) {
  if (value.size() >= min && value.size() <= max) return absl::OkStatus();
  return Bad(field, absl::StrCat(value.size(), " bytes, must be ", min, " to ", max));
}

// Text that reaches errors, logs and explanations, here and in Python, so it must be printable.
absl::Status CheckText(absl::string_view field, std::string_view value, size_t min) {
  if (absl::Status s = CheckSize(field, value, min, kMaxNameBytes); !s.ok()) return s;
  if (IsPrintable(value)) return absl::OkStatus();
  return Bad(field, absl::StrCat("\"", Printable(value, kMaxNameBytes),
                                 "\" must be UTF-8 without control characters"));
}

void EncodeHost(const HostIdentity& host, proto::Host& out) {
  out.set_hostname(host.hostname);
  out.set_boot_id(host.boot_id);
  out.set_net_namespace(host.net_namespace);
  out.set_pid_namespace(host.pid_namespace);
  out.set_uid(host.uid);
  out.set_pid(host.pid);
  out.set_start_time(host.start_time);
}

void EncodeRegion(const AgentMetadata::Region& region,
                  const std::map<std::string, uint32_t>& key_backends, proto::Region& out) {
  out.set_id(static_cast<uint32_t>(region.region.id));
  out.set_rkey(region.region.rkey);
  out.set_base(region.region.base);
  out.set_bytes(region.region.bytes);
  out.set_kind(static_cast<uint32_t>(region.region.kind));
  out.set_device_id(region.region.device_id);
  out.set_access(static_cast<uint32_t>(region.region.access));
  out.set_staging(region.staging);
  for (const auto& [backend, key] : region.keys) {
    proto::RegionKey& encoded = *out.add_keys();
    encoded.set_backend(key_backends.at(backend));
    encoded.set_key(key);
  }
}

absl::StatusOr<std::string_view> OpenEnvelope(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("not kvxfer metadata: it does not begin with \"KVXM\"");
  }
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata is truncated: ", bytes.size(), " bytes"));
  }
  const auto version = LoadLittle<uint32_t>(bytes.substr(4));
  if (version != kEnvelopeVersion) {
    return absl::FailedPreconditionError(absl::StrCat("metadata has envelope version ", version,
                                                      ", this kvxfer reads version ",
                                                      kEnvelopeVersion, "; update the older one"));
  }
  const auto length = LoadLittle<uint32_t>(bytes.substr(8));
  const std::string_view inside = bytes.substr(kHeaderBytes);
  // The length is compared with the real size before anything is parsed.
  if (length != inside.size() || length > kMaxProtoBytes) {
    return absl::InvalidArgumentError(absl::StrCat("metadata is truncated or damaged: it says ",
                                                   length, " bytes after the header, and has ",
                                                   inside.size()));
  }
  if (LoadLittle<uint64_t>(bytes.substr(12)) != XXH3_64bits(inside.data(), inside.size())) {
    return absl::InvalidArgumentError("metadata is damaged: its checksum does not match");
  }
  return inside;
}

absl::Status DecodeVersions(const proto::Metadata& in, AgentMetadata& out) {
  constexpr uint32_t kMax = std::numeric_limits<uint16_t>::max();
  if (in.min_version() > in.max_version() || in.max_version() > kMax) {
    return Bad("versions", absl::StrCat(in.min_version(), " to ", in.max_version(),
                                        " is no range of 16-bit numbers"));
  }
  out.min_version = static_cast<uint16_t>(in.min_version());
  out.max_version = static_cast<uint16_t>(in.max_version());
  // Fails if the two ranges have no version in common.
  return CommonVersion(kMinProtocolVersion, kMaxProtocolVersion, out.min_version, out.max_version)
      .status();
}

absl::Status DecodeHost(const proto::Host& in, HostIdentity& out) {
  if (absl::Status s = CheckText("hostname", in.hostname(), 0); !s.ok()) return s;
  if (absl::Status s = CheckText("boot_id", in.boot_id(), 0); !s.ok()) return s;
  out = {.hostname = in.hostname(),
         .boot_id = in.boot_id(),
         .net_namespace = in.net_namespace(),
         .pid_namespace = in.pid_namespace(),
         .uid = in.uid(),
         .pid = in.pid(),
         .start_time = in.start_time()};
  return absl::OkStatus();
}

absl::Status DecodeBackends(const proto::Metadata& in, AgentMetadata& out) {
  std::set<std::string_view> names;
  for (const proto::BackendAddress& backend : in.backends()) {
    absl::Status status = CheckText("backend", backend.backend(), 1);
    if (status.ok()) {
      status = CheckSize("backend address", backend.address(), 0, kMaxAddressBytes);
    }
    if (!status.ok()) return status;
    if (!names.insert(backend.backend()).second) {
      return Bad("backend", absl::StrCat("\"", backend.backend(), "\" occurs twice"));
    }
    out.backends.push_back({.backend = backend.backend(), .address = backend.address()});
  }
  // key_backends may name backends that have no address, and has its own uniqueness.
  names.clear();
  for (const std::string& name : in.key_backends()) {
    if (absl::Status s = CheckText("key_backends", name, 1); !s.ok()) return s;
    if (!names.insert(name).second) {
      return Bad("key_backends", absl::StrCat("\"", name, "\" occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRegion(const proto::Region& region, uint32_t last_region) {
  // Checked here once, so that planning may use base + bytes without overflow checks.
  const std::string field = absl::StrCat("region ", region.id());
  uint64_t end = 0;
  if (region.id() == 0 || region.id() > last_region) {
    return Bad(field, absl::StrCat("ids are 1 to last_region, ", last_region));
  }
  // 0 means "no rkey" everywhere else.
  if (region.rkey() == 0) return Bad(field, "rkey is 0");
  if (region.bytes() == 0 || __builtin_add_overflow(region.base(), region.bytes(), &end)) {
    return Bad(field, absl::StrCat("[0x", absl::Hex(region.base()), ", +", region.bytes(),
                                   ") is empty or ends beyond the address space"));
  }
  if (region.kind() > static_cast<uint32_t>(MemoryKind::kCuda)) {
    return Bad(field, absl::StrCat("memory kind ", region.kind(), " is unknown"));
  }
  if (region.device_id() < 0) {
    return Bad(field, absl::StrCat("device_id ", region.device_id(), " is negative"));
  }
  if (region.access() > static_cast<uint32_t>(Access::kReadWrite)) {
    return Bad(field, absl::StrCat("access ", region.access(), " is unknown"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AgentMetadata::Region> DecodeRegion(const proto::Region& in,
                                                   const proto::Metadata& metadata) {
  if (absl::Status s = CheckRegion(in, metadata.last_region()); !s.ok()) return s;
  AgentMetadata::Region out;
  out.region = {.id = static_cast<RegionId>(in.id()),
                .rkey = in.rkey(),
                .base = in.base(),
                .bytes = in.bytes(),
                .kind = static_cast<MemoryKind>(in.kind()),
                .device_id = in.device_id(),
                .access = static_cast<Access>(in.access())};
  out.staging = in.staging();
  for (const proto::RegionKey& key : in.keys()) {
    const std::string field = absl::StrCat("region ", in.id(), " key");
    if (absl::Status s = CheckSize(field, key.key(), 1, kMaxAddressBytes); !s.ok()) return s;
    if (key.backend() >= static_cast<uint32_t>(metadata.key_backends_size())) {
      return Bad(field, absl::StrCat("backend index ", key.backend(), " of ",
                                     metadata.key_backends_size()));
    }
    const std::string& backend = metadata.key_backends(static_cast<int>(key.backend()));
    if (!out.keys.emplace(backend, key.key()).second) {
      return Bad(field, absl::StrCat("two for backend \"", backend, "\""));
    }
  }
  return out;
}

absl::Status DecodeRegions(const proto::Metadata& in, AgentMetadata& out) {
  out.last_region = in.last_region();
  // A region's keys name backends by index into key_backends, which DecodeRegion checks.
  // Two regions with one id could not be told apart when one of them is deregistered.
  std::set<uint32_t> ids;
  for (const proto::Region& region : in.regions()) {
    if (!ids.insert(region.id()).second) {
      return Bad(absl::StrCat("region ", region.id()), "occurs twice");
    }
    absl::StatusOr<AgentMetadata::Region> decoded = DecodeRegion(region, in);
    if (!decoded.ok()) return decoded.status();
    out.regions.push_back(*std::move(decoded));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeMetadata(const AgentMetadata& metadata) {
  proto::Metadata out;
  out.set_name(metadata.name);
  out.set_incarnation(metadata.incarnation.bytes.data(), metadata.incarnation.bytes.size());
  out.set_min_version(metadata.min_version);
  out.set_max_version(metadata.max_version);
  EncodeHost(metadata.host, *out.mutable_host());
  for (const AgentMetadata::BackendAddress& backend : metadata.backends) {
    proto::BackendAddress& encoded = *out.add_backends();
    encoded.set_backend(backend.backend);
    encoded.set_address(backend.address);
  }
  // Regions name backends by number: with tens of regions, the names would be most of the bytes.
  std::map<std::string, uint32_t> key_backends;
  for (const AgentMetadata::Region& region : metadata.regions) {
    for (const auto& [backend, key] : region.keys) {
      const auto next = static_cast<uint32_t>(key_backends.size());
      if (key_backends.emplace(backend, next).second) out.add_key_backends(backend);
    }
    EncodeRegion(region, key_backends, *out.add_regions());
  }
  out.set_last_region(metadata.last_region);
  out.set_revision(metadata.revision);
  EncodeKvCaches(metadata.kv_caches, out);

  const std::string inside = out.SerializeAsString();
  std::string start(kMagic);
  start.reserve(kHeaderBytes + inside.size());
  wire::Writer header(std::move(start));
  header.Int("version", kEnvelopeVersion);
  header.Int("length", static_cast<uint32_t>(inside.size()));
  header.Int("hash", static_cast<uint64_t>(XXH3_64bits(inside.data(), inside.size())));
  std::string bytes = header.Take();
  bytes += inside;
  return bytes;
}

absl::Status CheckWhole(std::string_view bytes) { return OpenEnvelope(bytes).status(); }

absl::StatusOr<AgentMetadata> DecodeMetadata(std::string_view bytes) {
  // Everything in the protobuf is untrusted; each field is checked before it is used.
  const absl::StatusOr<std::string_view> inside = OpenEnvelope(bytes);
  if (!inside.ok()) return inside.status();
  proto::Metadata in;
  if (!in.ParseFromArray(inside->data(), static_cast<int>(inside->size()))) {
    return absl::InvalidArgumentError("metadata is damaged: its protobuf does not parse");
  }
  AgentMetadata out;
  absl::Status status = CheckText("name", in.name(), 1);
  if (status.ok()) status = DecodeVersions(in, out);
  if (status.ok() && in.incarnation().size() != out.incarnation.bytes.size()) {
    status = Bad("incarnation", absl::StrCat(in.incarnation().size(), " bytes, must be 16"));
  }
  if (!status.ok()) return status;
  out.name = in.name();
  std::memcpy(out.incarnation.bytes.data(), in.incarnation().data(), out.incarnation.bytes.size());
  // All zeros means "no incarnation", and "any" in the preamble of a stream.
  if (out.incarnation.IsZero()) return Bad("incarnation", "is all zeros");
  status = DecodeHost(in.host(), out.host);
  if (status.ok()) status = DecodeBackends(in, out);
  if (status.ok()) status = DecodeRegions(in, out);
  if (!status.ok()) return status;
  absl::StatusOr<KvCacheTable> caches = DecodeKvCaches(in);
  if (!caches.ok()) return caches.status();
  out.kv_caches = *std::move(caches);
  out.revision = in.revision();
  return out;
}

}  // namespace kvxfer
