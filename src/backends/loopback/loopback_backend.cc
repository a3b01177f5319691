#include "src/backends/loopback/loopback_backend.h"

#include <algorithm>
#include <utility>

#include "src/backends/loopback/factory.h"
#include "src/backends/loopback/options.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace loopback {
namespace {

constexpr uint64_t kPollBytes = 1 << 20;  // copied in one Poll, over all endpoints

class LoopbackRegistration : public Registration {
 public:
  LoopbackRegistration(std::shared_ptr<Node> node, uint32_t rkey)
      : node_(std::move(node)), rkey_(rkey) {}
  ~LoopbackRegistration() override { node_->Conceal(rkey_); }

 private:
  const std::shared_ptr<Node> node_;
  const uint32_t rkey_;
};

}  // namespace

LoopbackBackend::LoopbackBackend(std::shared_ptr<Node> node, HostIdentity host, uint32_t rails)
    : node_(std::move(node)),
      host_(std::move(host)),
      rails_(rails),
      info_{.name = "loopback",
            .capabilities = {.arrival = Arrival::kImmediate,
                             .rail_keeps_order = true,
                             .needs_remote_cpu = false,
                             .max_op_bytes = 1 << 20,
                             .max_op_pieces = 1024,
                             .max_message_bytes = kMaxMessageBytes},
            .address = node_->address(),
            .wait_fd = node_->wake_fd()} {}

LoopbackBackend::~LoopbackBackend() {
  Withdraw(*node_);
  ready_.Clear();  // destroys accepted endpoints that were not reported
  for (const auto& [connection, sides] : std::exchange(endpoints_, {})) {
    for (LoopbackEndpoint* const endpoint : sides) {
      if (endpoint != nullptr) endpoint->Detach();
    }
  }
  // Connections that no endpoint has accepted yet.
  for (const Mail& mail : node_->Close()) {
    if (mail.kind != MailKind::kConnect) continue;
    mail.connection->Close(Side::kTarget, absl::UnavailableError("the agent was destroyed"));
  }
}

absl::Status LoopbackBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  if (!host_.SameHost(host)) {
    return absl::UnavailableError(absl::StrCat("loopback reaches agents of one process; this is ",
                                               host_.hostname, ", the peer runs on ",
                                               host.hostname));
  }
  if (host.pid != host_.pid || host.start_time != host_.start_time ||
      host.pid_namespace != host_.pid_namespace) {
    return absl::UnavailableError(
        absl::StrCat("loopback reaches agents of one process; this is process ", host_.pid,
                     ", the peer is process ", host.pid));
  }
  if (address == node_->address()) return absl::InvalidArgumentError("this is the agent itself");
  if (Find(address) == nullptr) {
    return absl::UnavailableError(absl::StrCat("no agent of incarnation ", ToAbsl(address),
                                               " uses loopback in this process; destroyed?"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Endpoint>> LoopbackBackend::Connect(std::string_view address,
                                                                   const HostIdentity& host) {
  if (absl::Status reachable = Reachable(address, host); !reachable.ok()) return reachable;
  std::shared_ptr<Node> target = Find(address);
  auto connection =
      target == nullptr ? nullptr : std::make_shared<Connection>(node_, target, rails_);
  if (connection == nullptr ||
      !target->Deliver(
          {.kind = MailKind::kConnect, .to = Side::kTarget, .connection = connection})) {
    return absl::UnavailableError(
        absl::StrCat("the agent of incarnation ", ToAbsl(address), " was destroyed"));
  }
  auto endpoint = std::make_unique<LoopbackEndpoint>(this, std::move(connection), Side::kInitiator);
  Add(*endpoint);
  Report(MakeEvent(EventKind::kConnected, endpoint.get()));
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Registration>> LoopbackBackend::Register(const LocalRegion& region) {
  if (region.span.kind != MemoryKind::kHost) {
    return absl::UnimplementedError(
        "loopback: only host memory can be registered; GPU memory goes by way of it (staging), or "
        "over cuda_ipc");
  }
  node_->Expose(region);
  return std::make_unique<LoopbackRegistration>(node_, region.rkey);
}

// Mail is handled before copies, so that a close or a fence from the other side takes effect early.
size_t LoopbackBackend::Poll(std::span<Event> out, Input /*input*/) {
  if (ready_.size() < out.size()) TakeMail(out.size() - ready_.size());
  CopySome();
  return ready_.Take(out);
}

bool LoopbackBackend::Arm() {
  if (!ready_.empty() || node_->has_mail()) return false;
  return std::ranges::none_of(working_, [](const auto* endpoint) { return endpoint->HasWork(); });
}

void LoopbackBackend::Forget(const LoopbackEndpoint& endpoint) {
  Remove(endpoint);
  ready_.Purge(&endpoint);
}

void LoopbackBackend::TakeMail(size_t max) {
  if (!node_->has_mail()) return;
  node_->Collect(max, mail_);
  for (Mail& mail : mail_) {
    mail.connection->Taken(mail);
    OnMail(mail);
  }
  mail_.clear();
}

void LoopbackBackend::OnMail(Mail& mail) {
  if (mail.kind == MailKind::kConnect) return Accept(mail.connection);
  LoopbackEndpoint* const endpoint = FindEndpoint(mail.connection.get(), mail.to);
  if (endpoint == nullptr) return;  // went down or was destroyed meanwhile
  Event event = MakeEvent(EventKind::kMessage, endpoint);
  switch (mail.kind) {
    case MailKind::kConnect:
    case MailKind::kAuthorized:  // queued ops run from now on
    case MailKind::kSpace:       // only wakes the agent, which tries again after this Poll
      return;
    case MailKind::kMessage:
      break;
    case MailKind::kImmediate:
      event.kind = EventKind::kImmediate;
      event.rail = mail.rail;
      event.immediate = mail.immediate;
      break;
    case MailKind::kFenced:
      event = MakeFenced(endpoint, {.transfer = mail.transfer});
      break;
    case MailKind::kDown:
      endpoint->OnDown(mail.status);
      Remove(*endpoint);
      event.kind = EventKind::kDown;
      event.status = std::move(mail.status);
      break;
  }
  Report(std::move(event), std::move(mail.message));
}

void LoopbackBackend::Accept(const std::shared_ptr<Connection>& connection) {
  auto endpoint = std::make_unique<LoopbackEndpoint>(this, connection, Side::kTarget);
  Add(*endpoint);
  Report(MakeAccepted(std::move(endpoint)));
}

void LoopbackBackend::Add(LoopbackEndpoint& endpoint) {
  endpoints_[&endpoint.connection()][static_cast<size_t>(endpoint.side())] = &endpoint;
}

LoopbackEndpoint* LoopbackBackend::FindEndpoint(const Connection* connection, Side side) const {
  const auto at = endpoints_.find(connection);
  return at == endpoints_.end() ? nullptr : at->second[static_cast<size_t>(side)];
}

void LoopbackBackend::Remove(const LoopbackEndpoint& endpoint) {
  const auto at = endpoints_.find(&endpoint.connection());
  if (at == endpoints_.end()) return;
  at->second[static_cast<size_t>(endpoint.side())] = nullptr;
  if (at->second == Sides{}) endpoints_.erase(at);
  std::erase(working_, &endpoint);
}

// In turns, so that one large op does not delay the others.
void LoopbackBackend::CopySome() {
  uint64_t copied = 0;
  for (size_t left = working_.size(); left > 0 && copied < kPollBytes; --left) {
    LoopbackEndpoint* const endpoint = working_.front();
    working_.pop_front();
    if (endpoint->HasWork()) copied += endpoint->Advance();
    endpoint->listed = endpoint->queued() > 0;
    if (endpoint->listed) working_.push_back(endpoint);
  }
}

}  // namespace loopback

absl::StatusOr<std::unique_ptr<Backend>> MakeLoopbackBackend(const BackendContext& context) {
  const auto options = ReadOptions<loopback::LoopbackOptions>("loopback", context.options);
  if (!options.ok()) return options.status();
  auto node = loopback::Node::Create(context.incarnation.ToString());
  if (!node.ok()) return node.status();
  if (!loopback::Publish(*node)) {
    return absl::AlreadyExistsError(
        absl::StrCat("this process already has an agent of incarnation ", (*node)->address()));
  }
  return std::make_unique<loopback::LoopbackBackend>(*std::move(node), context.host,
                                                     options->rails);
}

}  // namespace kvxfer
