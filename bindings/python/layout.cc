// KvModel, KvShard, KvTensor and KvLayout (kvxfer/kv_layout.h).
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bindings/python/status.h"
#include "bindings/python/tensor_view.h"
#include "bindings/python/values.h"
#include "kvxfer/kv_layout.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

constexpr std::array kElements{
    std::pair{"bytes", KvElement::kBytes},      std::pair{"fp8_e4m3", KvElement::kFp8E4M3},
    std::pair{"fp8_e5m2", KvElement::kFp8E5M2}, std::pair{"fp16", KvElement::kFp16},
    std::pair{"bf16", KvElement::kBf16},        std::pair{"fp32", KvElement::kFp32}};

KvElement ToElement(const std::string& name) {
  for (const auto& [known, element] : kElements) {
    if (name == known) return element;
  }
  Refuse(absl::StrCat("element is \"", name,
                      "\"; expected bytes, fp8_e4m3, fp8_e5m2, fp16, bf16 or fp32"));
}

std::string NameOfElement(KvElement element) {
  for (const auto& [name, known] : kElements) {
    if (element == known) return name;
  }
  return "unknown";
}

KvTensor TensorOf(py::handle tensor, std::string axes) {
  const TensorView view = TensorView::Of(tensor, "tensor", false);
  KvTensor made{.axes = std::move(axes)};
  for (size_t i = 0; i < view.shape.size(); ++i) {
    if (view.strides[i] < 0 || view.strides[i] % static_cast<int64_t>(view.item_bytes) != 0) {
      Refuse(absl::StrCat("tensor is ", view.Describe(), "; expected strides of whole elements"));
    }
    made.shape.push_back(static_cast<uint64_t>(view.shape[i]));
    made.strides.push_back(static_cast<uint64_t>(view.strides[i]) / view.item_bytes);
  }
  return made;
}

void BindModel(py::module_& module) {
  py::class_<KvModel>(module, "KvModel", "What both sides of a KV cache have in common.")
      .def(py::init([](uint32_t layers, uint32_t heads, uint32_t k_size, uint32_t v_size,
                       const std::string& element, uint64_t fingerprint) {
             return KvModel{layers, heads, k_size, v_size, ToElement(element), fingerprint};
           }),
           py::arg("layers"), py::arg("heads"), py::arg("k_size"), py::arg("v_size"),
           py::arg("element") = "bf16", py::arg("fingerprint") = 0)
      .def_readwrite("layers", &KvModel::layers)
      .def_readwrite("heads", &KvModel::heads)
      .def_readwrite("k_size", &KvModel::k_size)
      .def_readwrite("v_size", &KvModel::v_size)
      .def_property(
          "element", [](const KvModel& m) { return NameOfElement(m.element); },
          [](KvModel& m, const std::string& name) { m.element = ToElement(name); })
      .def_readwrite("fingerprint", &KvModel::fingerprint)
      .def("__eq__", [](const KvModel& a, const KvModel& b) { return a == b; });
  py::class_<KvShard>(module, "KvShard", "Which part of the model's cache one worker has.")
      .def(py::init([](uint32_t layers, uint32_t tp_rank, uint32_t tp_size, uint32_t first_layer) {
             return KvShard{tp_rank, tp_size, first_layer, layers};
           }),
           py::arg("layers"), py::arg("tp_rank") = 0, py::arg("tp_size") = 1,
           py::arg("first_layer") = 0)
      .def_readwrite("layers", &KvShard::layers)
      .def_readwrite("tp_rank", &KvShard::tp_rank)
      .def_readwrite("tp_size", &KvShard::tp_size)
      .def_readwrite("first_layer", &KvShard::first_layer)
      .def("__eq__", [](const KvShard& a, const KvShard& b) { return a == b; });
  const auto ranks = [&module](const char* name, auto find, const char* doc) {
    module.def(
        name,
        [find](const KvModel& model, const KvShard& own, uint32_t tp_size,
               const std::vector<uint32_t>& stages) {
          return Value(find(model, own, KvDivision{.tp_size = tp_size, .stages = stages}));
        },
        py::arg("model"), py::arg("shard"), py::arg("tp_size"), py::arg("stages"), doc);
  };
  ranks("ranks_to_read", &RanksToRead,
        "The ranks of another instance that this worker reads from.");
  ranks("ranks_to_write", &RanksToWrite, "The ranks of another instance that it writes to.");
}

}  // namespace

void BindLayout(py::module_& module) {
  BindModel(module);
  py::class_<KvTensor>(
      module, "KvTensor",
      "A tensor as frameworks describe it: a letter for each axis, outermost first "
      "(L, 2, B, N, H, D, C), its shape, and its strides in elements.")
      .def(py::init(
               [](std::string axes, std::vector<uint64_t> shape, std::vector<uint64_t> strides) {
                 return KvTensor{std::move(axes), std::move(shape), std::move(strides)};
               }),
           py::arg("axes"), py::arg("shape"), py::arg("strides"))
      .def_static("of", &TensorOf, py::arg("tensor"), py::arg("axes"))
      .def_readwrite("axes", &KvTensor::axes)
      .def_readwrite("shape", &KvTensor::shape)
      .def_readwrite("strides", &KvTensor::strides);
  py::class_<KvLayout>(module, "KvLayout",
                       "How a KV cache lies in the memory of one worker, and which part of the "
                       "model's it is.")
      .def_static(
          "from_tensors",
          [](const KvModel& model, const KvShard& shard, const std::vector<KvTensor>& tensors) {
            return Value(KvLayout::FromTensors(model, shard, tensors));
          },
          py::arg("model"), py::arg("shard"), py::arg("tensors"),
          "InvalidArgument names the axis, and what it should be.")
      .def_property_readonly("model", &KvLayout::model)
      .def_property_readonly("shard", &KvLayout::shard)
      .def_property_readonly("blocks", &KvLayout::blocks)
      .def_property_readonly("block_tokens", &KvLayout::block_tokens)
      .def_property_readonly("tensors", &KvLayout::tensors)
      .def_property_readonly("tensor_count", &KvLayout::tensor_count)
      .def(
          "tensor_bytes",
          [](const KvLayout& layout, uint32_t tensor) {
            if (tensor >= layout.tensors()) {
              Refuse(absl::StrCat("tensor is ", tensor, "; expected below ", layout.tensors()));
            }
            return layout.tensor_bytes(tensor);
          },
          py::arg("tensor") = 0)
      .def("__eq__", [](const KvLayout& a, const KvLayout& b) { return a == b; });
}

}  // namespace kvxfer::python
