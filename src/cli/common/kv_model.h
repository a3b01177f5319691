// The shape of a model's KV cache, by the model's name or from a Hugging Face config.json.
#ifndef KVXFER_CLI_COMMON_KV_MODEL_H_
#define KVXFER_CLI_COMMON_KV_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"

namespace kvxfer::cli {

struct KvModel {
  std::string name;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // not used when fused
  uint32_t head_size = 0;
  uint32_t element_bytes = 2;
  // MLA: one region for each layer, with `fused_width` elements for each token, the same on every
  // TP rank.
  bool fused = false;
  uint32_t fused_width = 0;

  uint32_t pieces() const { return layers * (fused ? 1 : 2); }
  // Bytes of one token in one region (K or V of one layer) on one of `tp` ranks. With more ranks
  // than KV heads, several ranks have the same head.
  uint64_t TokenBytes(uint32_t tp) const;
};

// InvalidArgument, with the name of `option`, unless `tp` divides the number of KV heads or is a
// multiple of it.
absl::Status CheckTp(const KvModel& model, std::string_view option, uint64_t tp);

// Takes a known name or the path of a config.json. NotFound: it is neither; says which names there
// are. InvalidArgument names the field of the file that is missing or wrong.
absl::StatusOr<KvModel> LoadKvModel(std::string_view name_or_path);

// The same for the text of a config.json. Messages call it `name`.
absl::StatusOr<KvModel> ParseKvModel(std::string_view name, std::string_view text);

const std::vector<KvModel>& KnownKvModels();

// The same model as the library describes it.
kvxfer::KvModel LibraryModel(const KvModel& model);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_KV_MODEL_H_
