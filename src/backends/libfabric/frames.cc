// Encoding and decoding of control frames and of the address in the metadata.

#include "src/backends/libfabric/frames.h"

#include <algorithm>
#include <utility>

#include "src/core/base/text.h"
#include "src/transport/bytes.h"
#include "src/transport/hello.h"

namespace kvxfer::libfabric {
namespace {

enum class Kind : uint8_t {
  kHello = 1,
  kOffer,
  kAnswer,
  kRailLost,
  kBusy,
  kCount,
  kIdle,
  kTold,
  kQuiet,
};

class Writer {
 public:
  explicit Writer(Kind kind) { Put(static_cast<uint8_t>(kind)); }
  Writer& Put(uint8_t value) {
    out_.push_back(std::byte{value});
    return *this;
  }
  Writer& Put(uint32_t value) {
    out_.resize(out_.size() + sizeof(value));
    net::Put32(out_.data() + out_.size() - sizeof(value), value);
    return *this;
  }
  Writer& Put(uint64_t value) {
    out_.resize(out_.size() + sizeof(value));
    net::Put64(out_.data() + out_.size() - sizeof(value), value);
    return *this;
  }
  Writer& Put(std::string_view text) {
    text = text.substr(0, kMaxText);
    out_.resize(out_.size() + 2);
    net::Put16(out_.data() + out_.size() - 2, static_cast<uint16_t>(text.size()));
    const auto bytes = std::as_bytes(std::span(text));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  std::vector<std::byte> Take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Reads past the end return zero and make whole() false, so callers check once, at the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  uint8_t Byte() {
    const auto at = Some(1);
    return at.empty() ? uint8_t{0} : net::Get8(at.data());
  }
  uint32_t Number() {
    const auto at = Some(4);
    return at.empty() ? 0 : net::Get32(at.data());
  }
  uint64_t Word() {
    const auto at = Some(8);
    return at.empty() ? 0 : net::Get64(at.data());
  }
  std::string Text() {
    const auto head = Some(2);
    const size_t bytes = head.empty() ? 0 : net::Get16(head.data());
    if (bytes > kMaxText) whole_ = false;
    const auto at = whole_ ? Some(bytes) : std::span<const std::byte>();
    return {reinterpret_cast<const char*>(at.data()), at.size()};
  }
  // A text for people, fit for a log.
  std::string Words() { return Printable(Text(), kMaxText); }
  bool whole() const { return whole_ && in_.empty(); }

 private:
  std::span<const std::byte> Some(size_t bytes) {
    if (bytes > in_.size()) {
      whole_ = false;
      return {};
    }
    const auto at = in_.first(bytes);
    in_ = in_.subspan(bytes);
    return at;
  }
  std::span<const std::byte> in_;
  bool whole_ = true;
};

struct Encoder {
  std::vector<std::byte> operator()(const Hello& hello) {
    return Writer(Kind::kHello).Put(hello.domains).Take();
  }
  std::vector<std::byte> operator()(const Offer& offer) {
    return Writer(Kind::kOffer).Put(offer.rail).Put(offer.life).Put(offer.address).Take();
  }
  std::vector<std::byte> operator()(const Answer& answer) {
    return Writer(Kind::kAnswer)
        .Put(answer.rail)
        .Put(answer.life)
        .Put(answer.error)
        .Put(answer.address)
        .Put(answer.sink)
        .Put(answer.sink_key)
        .Take();
  }
  std::vector<std::byte> operator()(const RailLost& lost) {
    return Writer(Kind::kRailLost).Put(lost.rail).Put(lost.life).Put(lost.why).Take();
  }
  std::vector<std::byte> operator()(const Busy&) { return Writer(Kind::kBusy).Take(); }
  std::vector<std::byte> operator()(const Count& count) {
    return Writer(Kind::kCount).Put(count.rail).Put(count.life).Put(count.count).Take();
  }
  std::vector<std::byte> operator()(const Idle&) { return Writer(Kind::kIdle).Take(); }
  std::vector<std::byte> operator()(const Told& told) {
    return Writer(Kind::kTold).Put(told.rail).Put(told.life).Put(told.immediate).Take();
  }
  std::vector<std::byte> operator()(const Quiet& quiet) {
    return Writer(Kind::kQuiet).Put(quiet.transfer).Take();
  }
};

// A braced initialiser evaluates its parts from left to right, so the fields are read in order.
Frame Read(Kind kind, Reader& in) {
  switch (kind) {
    case Kind::kHello:
      return Hello{.domains = in.Byte()};
    case Kind::kOffer:
      return Offer{.rail = in.Byte(), .life = in.Number(), .address = in.Text()};
    case Kind::kAnswer:
      return Answer{.rail = in.Byte(),
                    .life = in.Number(),
                    .error = in.Words(),
                    .address = in.Text(),
                    .sink = in.Word(),
                    .sink_key = in.Word()};
    case Kind::kRailLost:
      return RailLost{.rail = in.Byte(), .life = in.Number(), .why = in.Words()};
    case Kind::kBusy:
      return Busy{};
    case Kind::kCount:
      return Count{.rail = in.Byte(), .life = in.Number(), .count = in.Number()};
    case Kind::kIdle:
      return Idle{};
    case Kind::kTold:
      return Told{.rail = in.Byte(), .life = in.Number(), .immediate = in.Number()};
    case Kind::kQuiet:
      return Quiet{.transfer = in.Word()};
  }
  // Not reached: Decode checks the kind.
  in.Word();
  return Busy{};
}

}  // namespace

std::vector<std::byte> Encode(const Frame& frame) { return std::visit(Encoder{}, frame); }

absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const uint8_t kind = in.Byte();
  if (kind < static_cast<uint8_t>(Kind::kHello) || kind > static_cast<uint8_t>(Kind::kQuiet)) {
    return net::Damaged("kind of a libfabric frame");
  }
  Frame frame = Read(static_cast<Kind>(kind), in);
  if (!in.whole()) return net::Damaged("libfabric frame");
  return frame;
}

std::string EncodeWhereabouts(const Whereabouts& at) {
  std::string out(1, static_cast<char>(at.provider.size()));
  out += at.provider;
  out += at.control;
  return out;
}

absl::StatusOr<Whereabouts> DecodeWhereabouts(std::string_view address) {
  const size_t bytes = address.empty() ? 0 : static_cast<uint8_t>(address[0]);
  if (bytes == 0 || address.size() < 1 + bytes) {
    return absl::InvalidArgumentError("libfabric: the peer's address is damaged");
  }
  return Whereabouts{.provider = std::string(address.substr(1, bytes)),
                     .control = address.substr(1 + bytes)};
}

}  // namespace kvxfer::libfabric
