#include "src/cli/common/kv_model.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/cli/common/options.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLargestField = 1u << 20;
constexpr size_t kMaxConfigBytes = 1u << 20;

// Reads the fields of one config and keeps the first error.
class ConfigReader {
 public:
  ConfigReader(std::string_view name, const Json& json) : name_(name), json_(json) {}

  std::optional<uint32_t> Optional(const char* field) {
    const auto it = json_.find(field);
    if (it == json_.end() || it->is_null()) return std::nullopt;
    if (!it->is_number_unsigned() || it->get<uint64_t>() == 0 ||
        it->get<uint64_t>() > kLargestField) {
      Fail(absl::StrCat("'", field, "' is not a number from 1 to ", kLargestField));
      return std::nullopt;
    }
    return static_cast<uint32_t>(it->get<uint64_t>());
  }

  uint32_t Required(const char* field) {
    const std::optional<uint32_t> value = Optional(field);
    if (!value) Fail(absl::StrCat("'", field, "' is missing"));
    return value.value_or(1);
  }

  uint32_t ElementBytes() {
    for (const char* field : {"torch_dtype", "dtype"}) {
      const auto it = json_.find(field);
      if (it == json_.end() || !it->is_string()) continue;
      const std::string& type = it->get_ref<const std::string&>();
      if (type == "float32") return 4;
      if (type == "bfloat16" || type == "float16") return 2;
      if (type.starts_with("float8") || type == "int8") return 1;
      Fail(absl::StrCat("'", field, "' has the unknown type '", type, "'"));
    }
    return 2;
  }

  void Fail(std::string_view why) {
    if (status_.ok()) {
      status_ = Invalid("model config ", name_, ": ", ToAbsl(why));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string name_;
  const Json& json_;
  absl::Status status_;
};

uint32_t HeadSize(ConfigReader& reader, uint32_t heads) {
  if (const std::optional<uint32_t> size = reader.Optional("head_dim")) return *size;
  const uint32_t hidden = reader.Required("hidden_size");
  if (hidden % heads != 0) reader.Fail("'hidden_size' is no multiple of 'num_attention_heads'");
  return std::max(hidden / heads, 1u);
}

}  // namespace

uint64_t KvModel::TokenBytes(uint32_t tp) const {
  if (fused) return uint64_t{fused_width} * element_bytes;
  const uint32_t heads = std::max((kv_heads + tp - 1) / tp, 1u);
  return uint64_t{heads} * head_size * element_bytes;
}

absl::Status CheckTp(const KvModel& model, std::string_view option, uint64_t tp) {
  if (model.fused || tp == 0 || model.kv_heads % tp == 0 || tp % model.kv_heads == 0) {
    return absl::OkStatus();
  }
  return Invalid(std::string(option), " ", tp, ": the ", model.kv_heads, " KV heads of ",
                 model.name, " cannot be split over so many ranks");
}

const std::vector<KvModel>& KnownKvModels() {
  static const auto* const kModels = new std::vector<KvModel>{
      {.name = "llama-3.1-8b", .layers = 32, .kv_heads = 8, .head_size = 128},
      {.name = "llama-3.1-70b", .layers = 80, .kv_heads = 8, .head_size = 128},
      {.name = "qwen3-235b-a22b", .layers = 94, .kv_heads = 4, .head_size = 128},
      {.name = "gpt-oss-120b", .layers = 36, .kv_heads = 8, .head_size = 64},
      {.name = "deepseek-v3", .layers = 61, .fused = true, .fused_width = 576},
  };
  return *kModels;
}

absl::StatusOr<KvModel> ParseKvModel(std::string_view name, std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Invalid("model config ", ToAbsl(name), ": not a JSON object");
  }
  // Multi-modal models have the language model's fields one level deeper.
  if (const auto inner = json.find("text_config"); inner != json.end() && inner->is_object()) {
    json = Json(*inner);
  }
  ConfigReader reader(name, json);
  KvModel model{.name = std::string(name)};
  model.layers = reader.Required("num_hidden_layers");
  model.element_bytes = reader.ElementBytes();
  if (const std::optional<uint32_t> rank = reader.Optional("kv_lora_rank")) {
    model.fused = true;
    model.fused_width = *rank + reader.Required("qk_rope_head_dim");
  } else {
    const uint32_t heads = reader.Required("num_attention_heads");
    model.kv_heads = reader.Optional("num_key_value_heads").value_or(heads);
    model.head_size = HeadSize(reader, heads);
  }
  if (!reader.status().ok()) return reader.status();
  return model;
}

absl::StatusOr<KvModel> LoadKvModel(std::string_view name_or_path) {
  for (const KvModel& model : KnownKvModels()) {
    if (model.name == name_or_path) return model;
  }
  std::ifstream file{std::string(name_or_path)};
  std::string text;
  if (file) {
    text.resize(kMaxConfigBytes + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
  }
  if (text.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "model '", ToAbsl(name_or_path), "' is neither known nor a readable config.json",
        DidYouMeanOrChoose(name_or_path, NamesOf(KnownKvModels()))));
  }
  if (text.size() > kMaxConfigBytes) {
    return Invalid("model config ", ToAbsl(name_or_path), ": larger than 1 MiB");
  }
  return ParseKvModel(name_or_path, text);
}

kvxfer::KvModel LibraryModel(const KvModel& model) {
  const KvElement element = model.element_bytes == 1   ? KvElement::kFp8E4M3
                            : model.element_bytes == 4 ? KvElement::kFp32
                                                       : KvElement::kBf16;
  if (model.fused) {
    return {.layers = model.layers, .heads = 1, .k_size = model.fused_width, .element = element};
  }
  return {.layers = model.layers,
          .heads = model.kv_heads,
          .k_size = model.head_size,
          .v_size = model.head_size,
          .element = element};
}

}  // namespace kvxfer::cli
