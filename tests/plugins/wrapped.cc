// A whole backend as a plugin: what loopback is, by another name. It says in the log that it is
// made.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/plugin.h"
#include "src/backends/loopback/factory.h"
#include "src/core/base/log.h"

namespace kvxfer {
namespace {

class Wrapped final : public Backend {
 public:
  explicit Wrapped(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return "wrapped"; }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::string Address() const override { return inner_->Address(); }
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
  size_t Poll(std::span<Event> out, bool readable) override { return inner_->Poll(out, readable); }
  bool Arm() override { return inner_->Arm(); }
  int wait_fd() const override { return inner_->wait_fd(); }
  std::vector<std::string> Devices() const override { return {"memory of this process"}; }

 private:
  const std::unique_ptr<Backend> inner_;
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
