// How the fake fabric behaves: FAKE_FABRIC="PRESET,name=value,...", read at each fi_getinfo. What
// it does not understand ends the process: a typing error must not make a test easier.
//
//   FAKE_FABRIC=efa,eagain=0.2,errors=0.01,seed=7
//
// Presets: efa (also where nothing is said), efa_direct, bare, ordered, endpoint_keys;
// docs/testing.md has the values.
#ifndef KVXFER_TESTS_SUPPORT_FAKE_FABRIC_CONFIG_H_
#define KVXFER_TESTS_SUPPORT_FAKE_FABRIC_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fake_fabric {

enum class Order : uint8_t {
  kNone,
  kMessages,  // messages arrive as they were sent, RMA does not
  kAll,
};

enum class Progress : uint8_t {
  kAuto,    // nobody needs to call anything
  kManual,  // ops leave, and completions come, only while the initiator reads a completion queue
  kBoth,    // and nothing arrives unless the target does too
};

struct Config {
  std::string provider = "efa";
  std::string fabric = "efa";
  std::string device = "rdmap0s";  // name of a domain, less its number
  int mr_mode = 0;
  Order order = Order::kNone;
  Progress progress = Progress::kManual;
  bool wait_fd = false;
  bool selective = false;   // FI_SELECTIVE_COMPLETION
  bool hmem = false;        // FI_HMEM: memory of GPUs, those of the stand-in CUDA driver
  bool p2p = true;          // and the devices reach it; else the provider would copy it
  bool context2 = false;    // FI_CONTEXT2: what is posted with is the provider's to write to
  bool thread_safe = true;  // else its level is FI_THREAD_DOMAIN
  size_t devices = 1;
  size_t cq_data_size = 4;
  size_t mr_key_size = 4;
  size_t inject_size = 32;
  size_t iov_limit = 2;
  size_t rma_iov_limit = 1;
  size_t tx_size = 512;
  size_t rx_size = 1024;
  size_t max_msg_size = size_t{1} << 30;
  size_t max_endpoints = 65535;
  size_t max_regions = 65536;
  uint32_t api_minor = 17;  // fi_version() and what fi_getinfo is asked for at most

  size_t mtu = 8192;        // a write lands in pieces of this size or of a 64th of it
  size_t window = 16;       // of so many each next one is chosen
  uint64_t delay_us = 300;  // a quarter of the ops is held back so long at most; 0: none
  uint64_t late_us = 5000;  // what lands late lands so late, or half as late
  double eagain = 0;        // posts that are refused though there is room
  double repeat = 0;        // failures that are told twice
  double errors = 0;        // ops that fail: untouched, or landed, or landing later
  size_t spare = 0;         // so many first ops of an endpoint do not fail
  double early = 0;         // ops without FI_DELIVERY_COMPLETE that complete before they land
  double behind = 0;        // immediates that come after the op has completed at its initiator
  double mute = 0;          // immediates that do not come at all, though their writes land
  uint64_t seed = 0;        // 0: another one each time
};

Config ReadConfig();
// For the tests of the parser. False: `text` has a mistake, `why` says which.
bool ParseConfig(std::string_view text, Config* config, std::string* why);

}  // namespace fake_fabric

#endif  // KVXFER_TESTS_SUPPORT_FAKE_FABRIC_CONFIG_H_
