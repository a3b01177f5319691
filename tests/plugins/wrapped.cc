// A whole backend as a plugin: what loopback is, by another name. It says in the log that it is
// made.

#include <memory>
#include <string>
#include <utility>

#include "kvxfer/plugin.h"
#include "src/backends/loopback/factory.h"
#include "src/core/base/log.h"

namespace kvxfer {
namespace {

class Wrapped final : public Backend {
 public:
  explicit Wrapped(std::unique_ptr<Backend> inner)
      : inner_(std::move(inner)), info_(inner_->Describe()) {
    info_.name = "wrapped";
    info_.devices = {"memory of this process"};
  }

  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override {
    return inner_->Reachable(address, host);
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override {
    return inner_->Connect(address, host);
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override {
    return inner_->Register(region);
  }
  size_t Poll(std::span<Event> out, Input input) override { return inner_->Poll(out, input); }
  bool Arm() override { return inner_->Arm(); }

 private:
  const std::unique_ptr<Backend> inner_;
  BackendInfo info_;  // loopback's does not change
};

absl::StatusOr<std::unique_ptr<Backend>> MakeWrapped(const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<Backend>> inner = MakeLoopbackBackend(context);
  if (!inner.ok()) return inner;
  Log(LogLevel::kInfo, "wrapped is made for {}", context.options.name);
  return std::make_unique<Wrapped>(*std::move(inner));
}

std::string Version() { return "Wrapped 1.2 from nowhere"; }

}  // namespace
}  // namespace kvxfer

KVXFER_BACKEND_PLUGIN(wrapped, kvxfer::MakeWrapped, kvxfer::Version)
