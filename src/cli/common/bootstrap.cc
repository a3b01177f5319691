#include "src/cli/common/bootstrap.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "kvxfer/log.h"
#include "src/backends/faulty/options.h"
#include "src/backends/registry.h"
#include "src/cli/common/options.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/cuda/driver.h"
#include "src/cuda/present.h"

namespace kvxfer::cli {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve '", address.host, "': ", gai_strerror(error)));
  }
  return Addresses(found, &freeaddrinfo);
}

uint16_t BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// 0, or the errno of the failure.
int ConnectWithin(int fd, const addrinfo& to, Duration timeout) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  if (poll(&wait, 1, static_cast<int>(limit)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// Unique among the processes of all hosts: a server tells its clients apart by their names.
std::string UniqueName(const std::string& role) {
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0) host = "host";
  host = Printable(host.c_str(), 64);
  return absl::StrCat(role, "-", host, "-", getpid(), "-",
                      absl::Hex(RandomNonZero32(), absl::kZeroPad8));
}

// KVXFER_LISTEN with the default value looks as if it were not set; --listen does not.
absl::Status SetAddresses(const AgentSetup& setup, AgentOptions& options) {
  const bool by_default = options.listen == AgentOptions().listen;
  if (by_default && !setup.default_listen.empty()) options.listen = setup.default_listen;
  if (!setup.listen.empty()) options.listen = setup.listen;
  if (!setup.advertise.empty()) options.advertise = setup.advertise;
  absl::StatusOr<HostPort> listen = ParseHostPort(options.listen, 0);
  if (!listen.ok()) return Annotate(listen.status(), "--listen (KVXFER_LISTEN)");
  if (setup.own_port) listen->port = 0;
  options.listen = listen->ToString();
  if (!setup.own_port || options.advertise.empty()) return absl::OkStatus();
  absl::StatusOr<HostPort> advertise = ParseHostPort(options.advertise, 0);
  if (!advertise.ok()) return Annotate(advertise.status(), "KVXFER_ADVERTISE");
  advertise->port = 0;
  options.advertise = advertise->ToString();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BootstrapServer> BootstrapServer::Listen(const HostPort& address) {
  absl::StatusOr<Addresses> found = Resolve(address, AI_PASSIVE);
  if (!found.ok()) return absl::InvalidArgumentError(found.status().message());
  const addrinfo& a = **found;
  UniqueFd fd(socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd.get() < 0 || bind(fd.get(), a.ai_addr, a.ai_addrlen) != 0 || listen(fd.get(), 128) != 0) {
    const int error = errno;
    return absl::FailedPreconditionError(
        absl::StrCat(ErrnoText("listening on " + address.ToString(), error),
                     "; choose another address or port with --listen"));
  }
  const uint16_t port = BoundPort(fd.get());
  return BootstrapServer(std::move(fd), {.host = address.host, .port = port});
}

void BootstrapServer::Run(int stop_fd, const std::function<void(Channel&)>& serve) {
  for (;;) {
    pollfd waits[] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                      {.fd = stop_fd, .events = POLLIN, .revents = 0}};
    poll(waits, std::size(waits), -1);
    if (waits[1].revents != 0) break;
    JoinEnded(/*all=*/false);
    if (waits[0].revents != 0) Accept(serve);
  }
  {
    const std::lock_guard lock(clients_->mutex);
    for (Client& client : clients_->list) client.channel.Shutdown();
  }
  JoinEnded(/*all=*/true);
}

void BootstrapServer::Accept(const std::function<void(Channel&)>& serve) {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd.get() < 0) {
    // Out of descriptors: the listener stays readable, so that the loop would spin without a pause.
    if (errno == EMFILE || errno == ENFILE) poll(nullptr, 0, 50);
    return;
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  Channel channel(std::move(fd), "the client");
  const std::lock_guard lock(clients_->mutex);
  if (clients_->list.size() >= kMaxClients) {
    (void)channel.Send(ErrorAnswer(absl::UnavailableError("too many clients; try again later")),
                       std::chrono::milliseconds(10));
    return;
  }
  Client& client = clients_->list.emplace_back();
  client.channel = std::move(channel);
  client.thread = std::thread([this, &client, &serve] {
    serve(client.channel);
    // The other side sees the end now; joining the thread closes the descriptor.
    const std::lock_guard ending(clients_->mutex);
    client.channel.Shutdown();
    client.done = true;
  });
}

void BootstrapServer::JoinEnded(bool all) {
  std::list<Client> ended;
  {
    const std::lock_guard lock(clients_->mutex);
    for (auto it = clients_->list.begin(); it != clients_->list.end();) {
      const auto next = std::next(it);
      if (all || it->done) ended.splice(ended.end(), clients_->list, it);
      it = next;
    }
  }
  // Without the lock: an ending thread takes it.
  for (Client& client : ended) client.thread.join();
}

absl::StatusOr<Channel> ConnectTo(const HostPort& address, Duration timeout) {
  absl::StatusOr<Addresses> found = Resolve(address, 0);
  if (!found.ok()) return found.status();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found->get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = fd.get() < 0 ? errno : ConnectWithin(fd.get(), *a, timeout);
    if (error != 0) continue;
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return Channel(std::move(fd), address.ToString());
  }
  return absl::UnavailableError(
      absl::StrCat(ErrnoText("connecting to " + address.ToString(), error),
                   "; is `kvxfer serve` running there?"));
}

absl::StatusOr<Channel> ConnectToServer(const std::string& server) {
  const absl::StatusOr<HostPort> address = ParseHostPort(server);
  if (!address.ok()) return address.status();
  return ConnectTo(*address, std::chrono::seconds(2));
}

std::string LocalHost(const Channel& channel) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  const auto* address = reinterpret_cast<const sockaddr*>(&local);
  if (getsockname(channel.fd(), reinterpret_cast<sockaddr*>(&local), &size) != 0 ||
      (local.ss_family != AF_INET && local.ss_family != AF_INET6)) {
    return {};
  }
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  // A link-local address includes the name of a device of this host, which a peer cannot use.
  const std::string_view text = host.data();
  return text.find('%') == std::string_view::npos ? std::string(text) : std::string();
}

absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(const AgentSetup& setup) {
  // An error shows when GPU memory is allocated or registered.
  if (setup.gpu_memory && cuda::DriverPresent().ok()) (void)cuda::Driver::Get();
  absl::StatusOr<AgentOptions> options = OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  options->name = UniqueName(setup.role);
  if (!setup.backends.empty()) {
    options->backends = absl::StrSplit(setup.backends, ',', absl::SkipEmpty());
    absl::Status known = CheckBackendNames(options->backends, ListBackends(*options));
    if (!known.ok()) return Annotate(known, "--backend");
    // "^shm" requires no backend.
    const bool leaves_out = absl::StartsWith(setup.backends, "^");
    if (!leaves_out) options->require_backends = options->backends;
  }
  if (absl::Status status = SetAddresses(setup, *options); !status.ok()) return status;
  // Enough to break code that relies on an order, and not so much that a run takes long.
  if (absl::StrContains(setup.backends, "faulty:")) {
    options->backend["faulty"] =
        WriteOptions(faulty::FaultOptions{.seed = setup.fault_seed,
                                          .reorder_window = 8,
                                          .max_delay = std::chrono::milliseconds(1),
                                          .overtake = true});
  }
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(*options);
  // There is no peer yet that could be unavailable: this host lacks something.
  if (absl::IsUnavailable(agent.status()) || absl::IsUnimplemented(agent.status())) {
    return absl::FailedPreconditionError(agent.status().message());
  }
  return agent;
}

absl::Status CheckVersion(const Json& hello, const std::string& they, const std::string& we) {
  const std::string version = GetString(hello, "version");
  if (version == KVXFER_VERSION) return absl::OkStatus();
  return Invalid(they, " runs ", version.empty() ? "another version" : "version " + version,
                 " of kvxfer, ", we, " ", KVXFER_VERSION, "; run the same version on both hosts");
}

absl::StatusOr<std::string> AddPeerOf(const Json& message, Agent& agent) {
  const absl::StatusOr<std::string> theirs = GetHex(message, "metadata");
  if (!theirs.ok()) return theirs.status();
  return agent.AddPeer(*theirs);
}

absl::StatusOr<std::string> Introduce(Channel& channel, Agent& agent) {
  const absl::StatusOr<std::string> ours = agent.Metadata();
  if (!ours.ok()) return ours.status();
  const Json hello = {{"type", "hello"},
                      {"metadata", ToHex(*ours)},
                      {"version", KVXFER_VERSION},
                      {"boot_id", BootId()}};
  const absl::StatusOr<Json> answer = channel.Call(hello, std::chrono::seconds(10));
  if (!answer.ok()) return answer.status();
  if (absl::Status s = CheckVersion(*answer, channel.peer(), "this program"); !s.ok()) return s;
  return AddPeerOf(*answer, agent);
}

void ExpectPeersToLeave() { SetLogLevel(LogLevel::kError); }

std::string ChosenPath(const Agent& agent, const std::string& peer, const MemorySides& memory) {
  const absl::StatusOr<Explanation> explanation = agent.Explain(peer);
  if (!explanation.ok()) return std::string(explanation.status().message());
  const auto kind = [](const MemoryChoice& choice) {
    return choice.cuda() ? MemoryKind::kCuda : MemoryKind::kHost;
  };
  const auto pair = std::ranges::find_if(explanation->memory, [&](const MemoryExplanation& one) {
    return one.local == kind(memory.here) && one.remote == kind(memory.there);
  });
  const bool found = pair != explanation->memory.end();
  if (found && pair->backend.empty()) return absl::StrCat("no path: ", pair->why);
  for (const PathExplanation& path : explanation->paths) {
    if (found ? path.backend != pair->backend : !path.chosen) continue;
    return absl::StrCat(path.backend, ": ", path.why,
                        found && pair->staged ? "; staged in host memory" : "");
  }
  return "no path";
}

}  // namespace kvxfer::cli
