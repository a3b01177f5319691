// What the one suite runs over: each backend, each kind of memory, and each backend made worse by
// `faulty:`.
#ifndef KVXFER_TESTS_SUPPORT_FLAVOUR_H_
#define KVXFER_TESTS_SUPPORT_FLAVOUR_H_

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "kvxfer/options.h"
#include "src/backends/faulty/options.h"
#include "tests/support/test_memory.h"

namespace kvxfer::testing {

struct Flavour {
  std::string name;     // letters and digits: part of the test's name
  std::string backend;  // "tcp", "faulty:shm", ...
  MemoryType memory = MemoryType::kMapped;
  faulty::FaultOptions faults;
  std::vector<std::string> tcp_addresses{};
  std::string ucx_tls{};
  std::string ucx_listen{};
  std::vector<std::string> plugin_path{};
  // What control frames travel over. An agent has `carrier` (a backend) for them, if it is set.
  ControlCarrier control = ControlCarrier::kAuto;
  std::string carrier{};
  uint32_t rails = 2;      // of the backends that have as many as they are told to
  std::string provider{};  // of libfabric
  std::vector<std::string> domains{};

  bool faulty() const { return backend.starts_with("faulty:"); }
  // "tcp" of "faulty:tcp".
  std::string inner() const { return faulty() ? backend.substr(7) : backend; }
  // GPU memory, over a backend that does not reach it: the agents go by way of host memory.
  bool staged() const;
  // As TransferStats::path has it.
  std::string path() const { return staged() ? backend + " staged" : backend; }
  bool between_processes() const;
  // Bytes of one case.
  uint64_t max_case_bytes() const;
};

inline std::ostream& operator<<(std::ostream& out, const Flavour& f) { return out << f.name; }

// loopback, tcp, shm with mapped memory, shm with attached memory, verbs over devices in memory
// (host and GPU memory) or real ones (test_backends.h), and, where it was built, ucx over tcp and
// over posix; libfabric where the environment says over what.
std::vector<Flavour> PlainFlavours();
// The one of that name. A failure of the test that asks, if there is none.
Flavour PlainFlavour(std::string_view name);
bool HasUcx();
// GPU memory that the GPUs of this host copy.
Flavour CudaIpcFlavour();
// Backends that use rings for messages, told not to: cuda_ipc over its control stream, shm over its
// socket.
std::vector<Flavour> RinglessFlavours();
// GPU memory that devices in memory reach by themselves.
Flavour VerbsCudaFlavour();
// Control frames over TCP instead of SEND.
Flavour VerbsStreamFlavour();
// Over the provider of KVXFER_FABRIC_PROVIDER, with the domains of KVXFER_FABRIC_DOMAINS (with
// commas; empty: one), with GPU memory where KVXFER_FABRIC_MEMORY is cuda. Not set: none.
std::vector<Flavour> LibfabricFlavours();
// `tls`: as UCX_TLS.
Flavour UcxFlavour(std::string name, std::string tls);
// The one of those that runs over tcp.
Flavour TcpFlavour();
// Over tcp between two addresses of each side, with three data streams.
Flavour TcpAddressesFlavour();
// ucx that connects by socket address: over tcp, and over real RDMA devices where they are meant.
Flavour UcxSocketFlavour();
// GPU memory over tcp and shm, which do not reach it. For agents: backends by themselves refuse it.
std::vector<Flavour> StagedFlavours();
// Control frames by another backend than data, or not by the best way of their backend. For agents.
std::vector<Flavour> CarrierFlavours();
// Each of the plain ones reordered, delayed and overtaken, by `seeds` seeds from TestSeed() on;
// those after the first are soaks. Under a sanitizer by the first.
std::vector<Flavour> FaultyFlavours(int seeds = 2);
// Rails that fail alone and come back within `down_for`, on each backend; with orders kept and not.
std::vector<Flavour> RailFlavours(double down_probability, Duration down_for);
// The plain and the faulty ones, tcp between several addresses, ucx by socket address, those that
// are staged, one of them faulty, those whose control frames go another way. Under ThreadSanitizer
// one of those with the same threads.
std::vector<Flavour> AllFlavours();
// Those of AllFlavours that reach another process.
std::vector<Flavour> ProcessFlavours();
// The plain ones, ucx by socket address, and those that are staged, that reach another process.
std::vector<Flavour> PlainProcessFlavours();

AgentOptions OptionsFor(const Flavour& flavour, std::string_view name);

inline std::string FlavourName(const ::testing::TestParamInfo<Flavour>& info) {
  return info.param.name;
}

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_FLAVOUR_H_
