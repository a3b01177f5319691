#include "tests/support/fake_fabric/config.h"

#include <rdma/fabric.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace fake_fabric {
namespace {

bool ApplyPreset(std::string_view name, Config* config) {
  *config = Config{};
  if (name == "efa" || name == "efa_direct") {
    config->context2 = name == "efa_direct";
    if (config->context2) config->fabric = "efa-direct";
    config->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    config->early = 0.25;
  } else if (name == "bare") {
    config->provider = config->fabric = "bare";
    config->device = "bare";
    config->cq_data_size = config->inject_size = 0;
    config->iov_limit = 1;
    config->tx_size = config->rx_size = 8;
    config->max_msg_size = size_t{1} << 20;
    config->mr_key_size = 8;
    config->early = 0.25;
  } else if (name == "ordered") {
    config->provider = config->fabric = "ordered";
    config->device = "ordered";
    config->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    config->order = Order::kAll;
    config->progress = Progress::kBoth;
    config->selective = true;
    config->cq_data_size = config->mr_key_size = 8;
    config->inject_size = 64;
    config->iov_limit = config->rma_iov_limit = 4;
  } else if (name == "endpoint_keys") {
    config->provider = config->fabric = "endpoint_keys";
    config->device = "endpoint_keys";
    config->mr_mode = FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_PROV_KEY | FI_MR_RAW;
    config->progress = Progress::kAuto;
    config->wait_fd = true;
    config->cq_data_size = 8;
    config->mr_key_size = 16;
  } else {
    return false;
  }
  return true;
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseMrMode(std::string_view text, int* out) {
  struct Bit {
    std::string_view name;
    int value;
  };
  static constexpr std::array kBits = {Bit{"local", FI_MR_LOCAL},
                                       Bit{"virt_addr", FI_MR_VIRT_ADDR},
                                       Bit{"allocated", FI_MR_ALLOCATED},
                                       Bit{"prov_key", FI_MR_PROV_KEY},
                                       Bit{"endpoint", FI_MR_ENDPOINT},
                                       Bit{"raw", FI_MR_RAW},
                                       Bit{"none", 0}};
  *out = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('+'), text.size());
    const auto* bit = std::find_if(kBits.begin(), kBits.end(),
                                   [&](const Bit& b) { return b.name == text.substr(0, end); });
    if (bit == kBits.end()) return false;
    *out |= bit->value;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

template <typename Value, size_t kCount>
bool Choose(std::string_view text, const std::pair<std::string_view, Value> (&choices)[kCount],
            Value* out) {
  for (const auto& [name, value] : choices) {
    if (name != text) continue;
    *out = value;
    return true;
  }
  return false;
}

bool SetSize(std::string_view name, std::string_view value, Config* config, bool* known) {
  const std::pair<std::string_view, size_t*> sizes[] = {{"devices", &config->devices},
                                                        {"cq_data_size", &config->cq_data_size},
                                                        {"mr_key_size", &config->mr_key_size},
                                                        {"inject", &config->inject_size},
                                                        {"iov", &config->iov_limit},
                                                        {"rma_iov", &config->rma_iov_limit},
                                                        {"tx", &config->tx_size},
                                                        {"rx", &config->rx_size},
                                                        {"max_msg", &config->max_msg_size},
                                                        {"endpoints", &config->max_endpoints},
                                                        {"regions", &config->max_regions},
                                                        {"mtu", &config->mtu},
                                                        {"spare", &config->spare},
                                                        {"window", &config->window}};
  for (const auto& [key, place] : sizes) {
    if (key == name) return ParseNumber(value, place);
  }
  const std::pair<std::string_view, double*> chances[] = {
      {"eagain", &config->eagain}, {"errors", &config->errors}, {"repeat", &config->repeat},
      {"early", &config->early},   {"behind", &config->behind}, {"mute", &config->mute}};
  for (const auto& [key, place] : chances) {
    if (key == name) return ParseNumber(value, place) && *place >= 0 && *place <= 1;
  }
  if (name == "delay") return ParseNumber(value, &config->delay_us);
  if (name == "late") return ParseNumber(value, &config->late_us);
  if (name == "seed") return ParseNumber(value, &config->seed);
  if (name == "api_minor") return ParseNumber(value, &config->api_minor);
  *known = false;
  return false;
}

bool Set(std::string_view name, std::string_view value, Config* config) {
  bool known = true;
  if (SetSize(name, value, config, &known)) return true;
  if (known) return false;
  if (name == "provider" || name == "fabric" || name == "device") {
    (name == "provider" ? config->provider
     : name == "fabric" ? config->fabric
                        : config->device) = value;
    return !value.empty();
  }
  if (name == "mr_mode") return ParseMrMode(value, &config->mr_mode);
  if (name == "order") {
    return Choose<Order>(
        value, {{"none", Order::kNone}, {"messages", Order::kMessages}, {"all", Order::kAll}},
        &config->order);
  }
  if (name == "progress") {
    return Choose<Progress>(
        value,
        {{"auto", Progress::kAuto}, {"manual", Progress::kManual}, {"both", Progress::kBoth}},
        &config->progress);
  }
  if (name == "wait") return Choose<bool>(value, {{"fd", true}, {"none", false}}, &config->wait_fd);
  const std::pair<std::string_view, bool*> switches[] = {{"selective", &config->selective},
                                                         {"context2", &config->context2},
                                                         {"hmem", &config->hmem},
                                                         {"p2p", &config->p2p},
                                                         {"thread_safe", &config->thread_safe}};
  for (const auto& [key, place] : switches) {
    if (key == name) return Choose<bool>(value, {{"1", true}, {"0", false}}, place);
  }
  return false;
}

}  // namespace

bool ParseConfig(std::string_view text, Config* config, std::string* why) {
  ApplyPreset("efa", config);
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, end);
    const size_t equals = word.find('=');
    const bool good = equals == std::string_view::npos
                          ? ApplyPreset(word, config)
                          : Set(word.substr(0, equals), word.substr(equals + 1), config);
    if (!good) {
      *why = std::string(word);
      return false;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  // Who sleeps on a descriptor must be woken by somebody.
  if (config->wait_fd && config->progress == Progress::kBoth) {
    *why = "wait=fd with progress=both";
    return false;
  }
  if (config->iov_limit < 1 || config->iov_limit > 4 || config->rma_iov_limit < 1 ||
      config->rma_iov_limit > 4 || config->mtu == 0 || config->window == 0) {
    *why = "iov and rma_iov are 1 to 4, mtu and window are not 0";
    return false;
  }
  return true;
}

Config ReadConfig() {
  Config config;
  std::string why;
  const char* const text = std::getenv("FAKE_FABRIC");
  if (!ParseConfig(text == nullptr ? "" : text, &config, &why)) {
    std::fprintf(stderr, "FAKE_FABRIC=%s: not understood: %s\n", text, why.c_str());
    std::abort();
  }
  return config;
}

}  // namespace fake_fabric
