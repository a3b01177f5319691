// What a model keeps in its KV cache, from a name or from a Hugging Face config.json.
#ifndef KVXFER_CLI_COMMON_KV_MODEL_H_
#define KVXFER_CLI_COMMON_KV_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvxfer::cli {

struct KvModel {
  std::string name;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // not used when fused
  uint32_t head_size = 0;
  uint32_t element_bytes = 2;
  // MLA: one piece a layer, `fused_width` elements a token, the same on every TP rank.
  bool fused = false;
  uint32_t fused_width = 0;

  uint32_t pieces() const { return layers * (fused ? 1 : 2); }
  // Of one piece (K or V of one layer) on one of `tp` ranks; with more ranks than KV heads a
  // head is replicated.
  uint64_t TokenBytes(uint32_t tp) const;
};

// InvalidArgument names `option`, where neither the model's KV heads divide over `tp` ranks nor the
// other way round: then no rank has a part of its own.
absl::Status CheckTp(const KvModel& model, std::string_view option, uint64_t tp);

// A known name, or the path of a config.json. NotFound lists the names; InvalidArgument names the
// field of the file that is missing or wrong.
absl::StatusOr<KvModel> LoadKvModel(std::string_view name_or_path);

// The same for the text of a config.json; `name` is what messages call it.
absl::StatusOr<KvModel> ParseKvModel(std::string_view name, std::string_view text);

const std::vector<KvModel>& KnownKvModels();

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_KV_MODEL_H_
