// `kvxfer serve`: an agent that answers ping, bench, explain and doctor of other processes and
// hosts.

#include <sys/signalfd.h>

#include <csignal>
#include <cstdio>

#include "src/cli/common/bootstrap.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/options.h"
#include "src/cli/common/peer_service.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

struct ServeFlags {
  std::string listen{};  // empty: the host of KVXFER_LISTEN, else loopback
  std::string backend{};
  std::string advertise{};
  uint64_t session_bytes = uint64_t{1} << 30;
  bool json = false;
};

// A descriptor that becomes readable at SIGINT and SIGTERM. Threads that start later inherit the
// blocked signals.
UniqueFd StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC));
}

// The address for clients. The agent listens for data on the same host, on the port of
// KVXFER_LISTEN or on any free port; its metadata has the port.
absl::StatusOr<HostPort> ClientAddress(const ServeFlags& flags) {
  if (!flags.listen.empty()) return ParseHostPort(flags.listen);
  const absl::StatusOr<AgentOptions> environment = OptionsFromEnvironment();
  if (!environment.ok()) return environment.status();
  absl::StatusOr<HostPort> address = ParseHostPort(environment->listen);
  if (!address.ok()) return Annotate(address.status(), "KVXFER_LISTEN");
  address->port = kDefaultPort;
  return address;
}

absl::Status RunServe(const ServeFlags& flags) {
  const absl::StatusOr<HostPort> address = ClientAddress(flags);
  if (!address.ok()) return address.status();
  const UniqueFd stop = StopSignals();
  absl::StatusOr<BootstrapServer> server = BootstrapServer::Listen(*address);
  if (!server.ok()) return server.status();
  const std::string data =
      flags.listen.empty() ? "" : HostPort{.host = address->host, .port = 0}.ToString();
  absl::StatusOr<std::unique_ptr<Agent>> agent = MakeAgent({.role = "serve",
                                                            .backends = flags.backend,
                                                            .listen = data,
                                                            .advertise = flags.advertise,
                                                            .gpu_memory = true});
  if (!agent.ok()) return agent.status();
  const std::string name = (*agent)->name();
  const std::string data_address = (*agent)->listen_address();
  PeerService service(std::move(*agent), flags.session_bytes);
  const std::string where = server->address().ToString();
  if (flags.json) {
    const Json line = {{"serving", where}, {"name", name}, {"data", data_address}};
    std::puts(DumpJson(line).c_str());
  } else {
    std::printf("serving %s as %s; stop with Ctrl-C\n", where.c_str(), name.c_str());
  }
  std::fflush(stdout);
  server->Run(stop.get(), [&service](Channel& channel) { service.Serve(channel); });
  return absl::OkStatus();
}

}  // namespace

void AddServe(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<ServeFlags>();
  CLI::App* command =
      AddCommand(app, action, "serve", "Answers ping, bench, explain and doctor of other processes",
                 [flags] { return RunServe(*flags); });
  AddText(command, "--listen", flags->listen, "HOST[:PORT]",
          "Address for clients (default: the host of KVXFER_LISTEN, else loopback)");
  AddBackend(command, flags->backend, "all");
  AddText(command, "--advertise", flags->advertise, "HOST[:PORT]",
          "Address that peers connect to for data (default: KVXFER_ADVERTISE, else the address "
          "that the agent listens on)");
  AddSize(command, "--max-session-bytes", flags->session_bytes, "Memory that one client may use");
  AddJson(command, flags->json);
}

}  // namespace kvxfer::cli
