// `kvxfer backends`: the backends of this host, where each comes from, what it can do, and why it
// cannot be used.

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_join.h"
#include "kvxfer/backend.h"
#include "kvxfer/version.h"
#include "src/backends/plugin_files.h"
#include "src/backends/plugins.h"
#include "src/backends/registry.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/options.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

struct BackendsFlags {
  std::vector<std::string> names{};
  bool json = false;
};

// One backend, as it is on this host.
struct BackendReport {
  BackendOrigin origin{};
  std::string version{};
  std::unique_ptr<Backend> backend{};  // null: not usable
  std::string why{};
};

std::string OriginText(const BackendOrigin& origin) {
  return origin.built_in ? "built in" : origin.file.empty() ? "not installed" : origin.file;
}

// In JSON: how the target learns that a write has arrived.
const char* ArrivalName(Arrival arrival) {
  return arrival == Arrival::kImmediate ? "immediate" : "copied";
}

const char* CompletionText(Arrival arrival) {
  return arrival == Arrival::kImmediate ? "write with immediate" : "copied by the initiator";
}

std::vector<std::string> MemoryNames(const Capabilities& caps) {
  std::vector<std::string> names;
  for (const auto& [kind, name] :
       {std::pair{MemoryKind::kHost, "host"}, std::pair{MemoryKind::kCuda, "cuda"}}) {
    if (caps.Takes(kind)) names.emplace_back(name);
  }
  return names;
}

BackendReport Look(BackendOrigin origin, const AgentOptions& options) {
  BackendReport report{.origin = std::move(origin)};
  if (report.origin.built_in) report.version = absl::StrCat("kvxfer ", kVersion);
  if (!report.origin.file.empty()) {
    // A plugin that does not work on this host has a version too.
    const auto plugin = LoadPlugin(report.origin.name, report.origin.file);
    if (plugin.ok()) {
      report.version = (*plugin)->library_version != nullptr ? (*plugin)->library_version()
                                                             : absl::StrCat("kvxfer ", kVersion);
    }
  }
  auto made = MakeBackend(
      report.origin.name,
      {.options = options, .incarnation = Incarnation::Random(), .host = ReadHostIdentity()});
  if (made.ok()) {
    report.backend = *std::move(made);
  } else {
    report.why = WithoutName(ToStd(made.status().message()), report.origin.name);
  }
  return report;
}

Json CapabilitiesJson(const Capabilities& caps) {
  return {
      {"arrival", ArrivalName(caps.arrival)},      {"memory", MemoryNames(caps)},
      {"rail_keeps_order", caps.rail_keeps_order}, {"rails_fail_alone", caps.rails_fail_alone},
      {"needs_remote_cpu", caps.needs_remote_cpu}, {"max_op_bytes", caps.max_op_bytes},
      {"max_op_pieces", caps.max_op_pieces},       {"max_message_bytes", caps.max_message_bytes},
      {"max_arrivals", caps.max_arrivals}};
}

Json BackendJson(const BackendReport& report) {
  const std::vector<std::string> defaults = DefaultBackends();
  const BackendOrigin& origin = report.origin;
  Json json = {{"name", origin.name},
               {"usable", report.backend != nullptr},
               {"default", std::ranges::find(defaults, origin.name) != defaults.end()},
               {"built_in", origin.built_in},
               {"file", origin.file.empty() ? Json(nullptr) : Json(origin.file)},
               {"version", report.version.empty() ? Json(nullptr) : Json(report.version)},
               {"why", report.why.empty() ? Json(nullptr) : Json(report.why)},
               {"capabilities", nullptr},
               {"devices", Json::array()}};
  if (report.backend == nullptr) return json;
  json["capabilities"] = CapabilitiesJson(report.backend->capabilities());
  json["devices"] = report.backend->Describe().devices;
  return json;
}

// "completion: write with immediate; memory: host; rails: keep order; ..."
std::string CapabilitiesText(const Capabilities& caps) {
  std::string text =
      absl::StrCat("completion: ", CompletionText(caps.arrival),
                   "; memory: ", absl::StrJoin(MemoryNames(caps), ", "),
                   "; rails: ", caps.rail_keeps_order ? "keep order" : "reorder",
                   caps.rails_fail_alone ? ", fail alone" : "",
                   "; target CPU: ", caps.needs_remote_cpu ? "takes part" : "not needed",
                   "; op: up to ", FormatBytes(caps.max_op_bytes), ", ", caps.max_op_pieces,
                   " pieces; message: up to ", FormatBytes(caps.max_message_bytes));
  if (caps.max_arrivals > 0) {
    absl::StrAppend(&text, "; arrivals in flight: up to ", caps.max_arrivals);
  }
  return text;
}

std::string ToText(const std::vector<BackendReport>& reports) {
  TextGrid grid;
  grid.Add({"backend", "", "version", "from"});
  for (const BackendReport& report : reports) {
    grid.Add({report.origin.name, report.backend != nullptr ? "usable" : "not usable",
              report.version, OriginText(report.origin)});
  }
  std::string text = grid.ToString();
  for (const BackendReport& report : reports) {
    absl::StrAppend(&text, "\n", report.origin.name, ": ");
    if (report.backend == nullptr) {
      absl::StrAppend(&text, "not usable: ", report.why, "\n");
      continue;
    }
    absl::StrAppend(&text, CapabilitiesText(report.backend->capabilities()), "\n");
    for (const std::string& device : report.backend->Describe().devices) {
      absl::StrAppend(&text, "  ", device, "\n");
    }
  }
  return text;
}

// The backends with these names, or all. InvalidArgument: there is no backend of a name.
absl::StatusOr<std::vector<BackendOrigin>> Chosen(const std::vector<std::string>& names,
                                                  const AgentOptions& options) {
  std::vector<BackendOrigin> all = ListBackends(options);
  if (names.empty()) return all;
  std::vector<BackendOrigin> chosen;
  for (const std::string& name : names) {
    const auto it = std::ranges::find(all, name, &BackendOrigin::name);
    if (it == all.end()) return UnknownBackend(name, all);
    chosen.push_back(*it);
  }
  return chosen;
}

absl::Status RunBackends(const BackendsFlags& flags) {
  absl::StatusOr<AgentOptions> options = OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  options->name = "backends";
  // Nothing connects here, and an agent may already use the port that the environment names.
  absl::StatusOr<HostPort> listen = ParseHostPort(options->listen, 0);
  if (!listen.ok()) return Annotate(listen.status(), "KVXFER_LISTEN");
  listen->port = 0;
  options->listen = listen->ToString();
  const absl::StatusOr<std::vector<BackendOrigin>> chosen = Chosen(flags.names, *options);
  if (!chosen.ok()) return chosen.status();
  std::vector<BackendReport> reports;
  for (const BackendOrigin& origin : *chosen) reports.push_back(Look(origin, *options));
  if (flags.json) {
    Json json = {{"version", kVersion},
                 {"toolchain", PluginToolchain()},
                 {"folders", PluginFolders(*options)},
                 {"backends", Json::array()}};
    for (const BackendReport& report : reports) json["backends"].push_back(BackendJson(report));
    std::puts(DumpJson(json, 2).c_str());
  } else {
    std::fputs(ToText(reports).c_str(), stdout);
  }
  for (const BackendReport& report : reports) {
    if (flags.names.empty() || report.backend != nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("backend ", report.origin.name, " is not usable here"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddBackends(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<BackendsFlags>();
  CLI::App* command =
      AddCommand(app, action, "backends",
                 "Shows the backends of this host, built in and plugins, and why one "
                 "cannot be used",
                 [flags] { return RunBackends(*flags); });
  SuggestWords(command->add_option("backend", flags->names,
                                   "Backends to show; exit status 5 unless all are usable "
                                   "(default: all)"),
               "NAME", NamesOf(KnownBackends()));
  AddJson(command, flags->json);
}

}  // namespace kvxfer::cli
