#include "tests/support/null_backend.h"

#include <cstdlib>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvxfer::testing {
namespace {

class NullBackend;

class NullEndpoint : public Endpoint {
 public:
  NullEndpoint(NullBackend* backend, std::unique_ptr<Endpoint> inner);
  ~NullEndpoint() override;

  EndpointInfo Describe() const override {
    EndpointInfo info = inner_->Describe();
    info.path.insert(0, "nowhere, told by ");
    return info;
  }
  void Authorize() override { inner_->Authorize(); }
  Posted Post(const Op& op) override;
  bool Send(std::span<const std::byte> message) override { return inner_->Send(message); }
  void Fence(FenceScope scope) override { inner_->Fence(scope); }
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override {
    return inner_->Import(region, key);
  }

  const Endpoint* inner() const { return inner_.get(); }
  void set_up(bool up) { up_ = up; }
  void Detach() { backend_ = nullptr; }

 private:
  NullBackend* backend_;  // null after Detach
  const std::unique_ptr<Endpoint> inner_;
  bool up_ = false;
};

class NullBackend : public Backend {
 public:
  NullBackend(std::string_view name, std::unique_ptr<Backend> inner)
      : inner_(std::move(inner)), info_(inner_->Describe()) {
    info_.name = name;
    info_.capabilities.arrival = Arrival::kCopied;
  }
  ~NullBackend() override {
    for (const auto& [inner, endpoint] : endpoints_) endpoint->Detach();
  }

  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override {
    return inner_->Reachable(address, host);
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override {
    auto inner = inner_->Connect(address, host);
    if (!inner.ok()) return inner.status();
    return std::make_unique<NullEndpoint>(this, *std::move(inner));
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override {
    return inner_->Register(region);
  }
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override { return inner_->Arm(); }

  // --- for its endpoints ---
  void Adopt(NullEndpoint* endpoint) { endpoints_.emplace(endpoint->inner(), endpoint); }
  void Forget(const NullEndpoint* endpoint) { endpoints_.erase(endpoint->inner()); }

 private:
  void Translate(Event& event);

  const std::unique_ptr<Backend> inner_;
  BackendInfo info_;                                              // loopback's does not change
  std::unordered_map<const Endpoint*, NullEndpoint*> endpoints_;  // by what it wraps
};

NullEndpoint::NullEndpoint(NullBackend* backend, std::unique_ptr<Endpoint> inner)
    : backend_(backend), inner_(std::move(inner)) {
  backend_->Adopt(this);
}

NullEndpoint::~NullEndpoint() {
  if (backend_ != nullptr) backend_->Forget(this);
}

Posted NullEndpoint::Post(const Op& op) {
  if (!up_ || backend_ == nullptr) return false;
  // Walks the runs as a backend that moves them does, so that a count of instructions includes it.
  uint64_t bytes = 0;
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) bytes += walk.run().bytes;
  if (bytes != op.blocks.bytes) std::abort();
  return Posted::Done();
}

void NullEndpoint::Shutdown(absl::Status why) {
  up_ = false;
  inner_->Shutdown(std::move(why));
}

size_t NullBackend::Poll(std::span<Event> out, Input input) {
  const size_t count = inner_->Poll(out, input);
  for (Event& event : out.first(count)) Translate(event);
  return count;
}

void NullBackend::Translate(Event& event) {
  if (event.kind == EventKind::kAccepted) {
    auto endpoint = std::make_unique<NullEndpoint>(this, std::move(event.accepted));
    event.endpoint = endpoint.get();
    event.accepted = std::move(endpoint);
    return;
  }
  const auto at = endpoints_.find(event.endpoint);
  event.endpoint = at == endpoints_.end() ? nullptr : at->second;
  if (at == endpoints_.end()) return;
  if (event.kind == EventKind::kConnected) at->second->set_up(true);
  if (event.kind == EventKind::kDown) at->second->set_up(false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeNullBackend(std::string_view name,
                                                         const BackendContext& context) {
  auto inner = MakeBackend("loopback", context);
  if (!inner.ok()) return inner.status();
  return std::make_unique<NullBackend>(name, *std::move(inner));
}

}  // namespace kvxfer::testing
