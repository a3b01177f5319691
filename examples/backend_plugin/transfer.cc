// Two agents of this process and one transfer between them, over the backend that is named on the
// command line; KVXFER_PLUGIN_PATH says where plugins are.
#include <cstdio>
#include <vector>

#include "kvxfer/agent.h"

namespace {

absl::Status Run(const char* backend) {
  auto options = kvxfer::OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  options->backends = {backend};
  options->name = "prefill-0";
  auto prefill = kvxfer::Agent::Create(*options);
  if (!prefill.ok()) return prefill.status();
  options->name = "decode-0";
  auto decode = kvxfer::Agent::Create(*options);
  if (!decode.ok()) return decode.status();

  std::vector<std::byte> from(1 << 20, std::byte{7});
  std::vector<std::byte> to(from.size());
  auto source = (*prefill)->RegisterMemory({.data = from.data(), .bytes = from.size()},
                                           kvxfer::Access::kRemoteRead);
  if (!source.ok()) return source.status();
  auto sink = (*decode)->RegisterMemory({.data = to.data(), .bytes = to.size()},
                                        kvxfer::Access::kReadWrite);
  if (!sink.ok()) return sink.status();
  auto metadata = (*decode)->Metadata();
  if (!metadata.ok()) return metadata.status();
  auto peer = (*prefill)->AddPeer(*metadata);
  if (!peer.ok()) return peer.status();

  const kvxfer::Descriptor mine{reinterpret_cast<uint64_t>(from.data()), from.size()};
  const kvxfer::Descriptor theirs{reinterpret_cast<uint64_t>(to.data()), to.size()};
  auto transfer = (*prefill)->Write(
      *peer, kvxfer::DescriptorBlocks{.local = {&mine, 1}, .remote = {&theirs, 1}},
      {.notification = "request 7"});
  if (!transfer.ok()) return transfer.status();
  if (absl::Status end = transfer->Wait(std::chrono::seconds(10)); !end.ok()) return end;
  auto told = (*decode)->WaitNotification(std::chrono::seconds(10));
  if (!told.ok()) return told.status();
  if (to != from) return absl::DataLossError("the bytes are not those that were sent");
  std::printf("%s: %s arrived, %zu bytes\n", transfer->stats().path.c_str(), told->payload.c_str(),
              to.size());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : "direct");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
