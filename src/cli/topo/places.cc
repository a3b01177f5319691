#include "src/cli/topo/places.h"

#include "absl/strings/str_cat.h"

namespace kvxfer::cli {

std::vector<Place> Places(const Topology& topology, const PortSelector& selector) {
  std::vector<Place> places;
  const auto add = [&](MemoryPlace place, const char* letter, const char* word, int number) {
    places.push_back({.place = place,
                      .column = absl::StrCat(letter, number),
                      .name = absl::StrCat(word, " ", number),
                      .plan = PlanRails(topology, place, selector)});
  };
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    add({MemoryPlace::Kind::kNode, i}, "N", "node", topology.nodes[i].id);
  }
  for (size_t i = 0; i < topology.gpus.size(); ++i) {
    add({MemoryPlace::Kind::kGpu, i}, "G", "GPU", static_cast<int>(i));
  }
  return places;
}

}  // namespace kvxfer::cli
