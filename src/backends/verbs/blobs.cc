#include "src/backends/verbs/blobs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/core/base/text.h"
#include "src/transport/bytes.h"
#include "src/transport/hello.h"

namespace kvxfer::verbs {
namespace {

// Control addresses are text that never contains this character.
constexpr char kEndOfControl = '|';

class Writer {
 public:
  void U8(uint64_t v) { Int(v, 1); }
  void U16(uint64_t v) { Int(v, 2); }
  void U32(uint64_t v) { Int(v, 4); }
  void U64(uint64_t v) { Int(v, 8); }
  void Raw(const Gid& gid) {
    for (const uint8_t byte : gid) out_.push_back(static_cast<std::byte>(byte));
  }
  void Text(std::string_view text) {
    text = text.substr(0, kMaxText);
    U16(text.size());
    const auto bytes = std::as_bytes(std::span(text));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void Port(const PortInfo& port) {
    Text(port.name);
    Text(port.fabric);
    U8(port.device);
    U8(port.link_layer);
    U8(port.mtu);
    U16(port.lid);
    U32(port.mbps);
    Raw(port.gid);
  }
  void Address(const QpAddress& address) {
    U32(address.number);
    U32(address.psn);
    U8(address.reads);
    Port(address.port);
  }
  std::vector<std::byte> Take() { return std::move(out_); }

 private:
  void Int(uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  // Beyond the end it returns zero and ok() becomes false.
  uint64_t Int(size_t bytes) {
    uint64_t v = 0;
    const std::span<const std::byte> at = Take(bytes);
    for (size_t i = 0; i < at.size(); ++i) v |= std::to_integer<uint64_t>(at[i]) << (8 * i);
    return v;
  }
  uint8_t U8() { return static_cast<uint8_t>(Int(1)); }
  uint16_t U16() { return static_cast<uint16_t>(Int(2)); }
  uint32_t U32() { return static_cast<uint32_t>(Int(4)); }
  uint64_t U64() { return Int(8); }
  // Cleaned for logs: names of ports, and reasons of failures.
  std::string Text() {
    const size_t length = U16();
    if (length > kMaxText) ok_ = false;
    const std::span<const std::byte> at = Take(ok_ ? length : 0);
    return Printable({reinterpret_cast<const char*>(at.data()), at.size()}, kMaxText);
  }
  PortInfo Port() {
    PortInfo port;
    port.name = Text();
    port.fabric = Text();
    port.device = U8();
    port.link_layer = U8();
    port.mtu = U8();
    port.lid = U16();
    port.mbps = U32();
    const std::span<const std::byte> gid = Take(port.gid.size());
    if (!gid.empty()) std::memcpy(port.gid.data(), gid.data(), gid.size());
    if (MtuBytes(port.mtu) == 0) ok_ = false;
    return port;
  }
  QpAddress Address() {
    QpAddress address;
    address.number = U32();
    address.psn = U32();
    address.reads = U8();
    address.port = Port();
    if (address.number >= 1u << 24 || address.psn >= 1u << 24) ok_ = false;
    return address;
  }
  bool ok() const { return ok_; }
  bool whole() const { return ok_ && in_.empty(); }

 private:
  std::span<const std::byte> Take(size_t bytes) {
    if (bytes > in_.size()) {
      ok_ = false;
      in_ = {};
      return {};
    }
    const std::span<const std::byte> out = in_.first(bytes);
    in_ = in_.subspan(bytes);
    return out;
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

struct Encoder {
  Writer& w;
  void operator()(const Ports& blob) const {
    w.U8(blob.ports.size());
    for (const PortInfo& port : blob.ports) w.Port(port);
  }
  void operator()(const Offer& blob) const {
    w.U8(blob.rail);
    w.U32(blob.life);
    w.U8(blob.port);
    w.Address(blob.from);
  }
  void operator()(const Answer& blob) const {
    w.U8(blob.rail);
    w.U32(blob.life);
    w.Text(blob.error);
    if (!blob.error.empty()) return;
    w.Address(blob.at);
    w.U64(blob.scratch);
    w.U32(blob.scratch_key);
  }
  void operator()(const Probe& blob) const {
    w.U8(blob.rail);
    w.U32(blob.life);
    w.U64(blob.nonce);
  }
  void operator()(const Probed& blob) const {
    w.U8(blob.rail);
    w.U32(blob.life);
    w.U8(blob.found ? 1 : 0);
  }
  void operator()(const RailLost& blob) const {
    w.U8(blob.rail);
    w.U32(blob.life);
    w.Text(blob.why);
  }
  void operator()(const Quiet& blob) const { w.U64(blob.transfer); }
};

Ports ReadPorts(Reader& r) {
  Ports out;
  const size_t count = r.U8();
  for (size_t i = 0; i < std::min(count, kMaxPorts + 1) && r.ok(); ++i) {
    out.ports.push_back(r.Port());
  }
  return out;
}

Answer ReadAnswer(Reader& r) {
  Answer out{.rail = r.U8(), .life = r.U32(), .error = r.Text()};
  if (!out.error.empty()) return out;
  out.at = r.Address();
  out.scratch = r.U64();
  out.scratch_key = r.U32();
  return out;
}

Blob Read(Reader& r, size_t kind) {
  switch (kind) {
    case 0:
      return ReadPorts(r);
    case 1:
      return Offer{.rail = r.U8(), .life = r.U32(), .port = r.U8(), .from = r.Address()};
    case 2:
      return ReadAnswer(r);
    case 3:
      return Probe{.rail = r.U8(), .life = r.U32(), .nonce = r.U64()};
    case 4:
      return Probed{.rail = r.U8(), .life = r.U32(), .found = r.U8() != 0};
    case 5:
      return RailLost{.rail = r.U8(), .life = r.U32(), .why = r.Text()};
    default:
      return Quiet{.transfer = r.U64()};
  }
}

}  // namespace

std::vector<std::byte> Encode(const Blob& blob) {
  Writer writer;
  writer.U8(blob.index());
  std::visit(Encoder{writer}, blob);
  return writer.Take();
}

absl::StatusOr<Blob> Decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const size_t kind = reader.U8();
  if (kind >= std::variant_size_v<Blob>) return net::Damaged("kind of a verbs frame");
  Blob blob = Read(reader, kind);
  if (!reader.whole()) return net::Damaged("length of a verbs frame");
  if (const auto* ports = std::get_if<Ports>(&blob); ports && ports->ports.size() > kMaxPorts) {
    return net::Damaged("number of ports");
  }
  return blob;
}

std::string EncodeTold(const Told& told) {
  const std::vector<std::byte> ports = Encode(told.ports);
  std::string out(told.control);
  out += kEndOfControl;
  out.append(reinterpret_cast<const char*>(ports.data()), ports.size());
  return out;
}

absl::StatusOr<Told> DecodeTold(std::string_view address) {
  const size_t end = address.find(kEndOfControl);
  if (end == std::string_view::npos) return net::Damaged("address of a verbs peer");
  absl::StatusOr<Blob> blob = Decode(std::as_bytes(std::span(address.substr(end + 1))));
  if (!blob.ok()) return blob.status();
  auto* const ports = std::get_if<Ports>(&*blob);
  if (ports == nullptr) return net::Damaged("ports of a verbs peer");
  return Told{.control = address.substr(0, end), .ports = std::move(*ports)};
}

}  // namespace kvxfer::verbs
