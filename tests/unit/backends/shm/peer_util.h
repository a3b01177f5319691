// A peer of the shm backend in a process of its own: a target that obeys commands, what it says of
// itself, and the initiator that is connected to it.

#ifndef KVXFER_TESTS_UNIT_BACKENDS_SHM_PEER_UTIL_H_
#define KVXFER_TESTS_UNIT_BACKENDS_SHM_PEER_UTIL_H_

#include <poll.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvxfer/memory.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {

inline std::string Text(const absl::Status& status) { return status.ToString(); }
inline bool Says(const absl::Status& status, std::string_view what) {
  return Text(status).find(what) != std::string::npos;
}

struct Served {
  std::string address;
  HostIdentity host;
  RemoteRegion region[2];  // 0: mapped, 1: attached
  std::string key[2];
};

inline std::string Describe(Side& side, const Side::Region regions[2]) {
  const HostIdentity host = ReadHostIdentity();
  std::ostringstream out;
  out << side.backend->Describe().address << ' ' << host.boot_id << ' ' << host.net_namespace << ' '
      << host.pid_namespace << ' ' << host.uid << ' ' << host.pid;
  for (int i = 0; i < 2; ++i) {
    out << ' ' << regions[i].remote.base << ' ' << regions[i].remote.bytes << ' ' << regions[i].key;
  }
  return out.str();
}

inline Served Parse(const std::string& text) {
  Served served;
  std::istringstream in(text);
  in >> served.address >> served.host.boot_id >> served.host.net_namespace >>
      served.host.pid_namespace >> served.host.uid >> served.host.pid;
  for (int i = 0; i < 2; ++i) {
    served.region[i].id = RegionId{static_cast<uint32_t>(i + 1)};
    served.region[i].access = Access::kReadWrite;
    in >> served.region[i].base >> served.region[i].bytes >> served.key[i];
  }
  return served;
}

// Commands: "check <way> <seed>", "fill <way> <seed>", "late", "shutdown", "downs".
inline std::string Obey(Side& side, std::byte* const data[2], size_t bytes,
                        const std::string& command, std::vector<HostBuffer>& late,
                        std::vector<Side::Region>& late_regions) {
  std::istringstream in(command);
  std::string verb;
  size_t way = 0;
  uint64_t seed = 0;
  in >> verb >> way >> seed;
  if (verb == "check") return std::to_string(FirstWrong(data[way], bytes, seed));
  if (verb == "fill") Fill(data[way], bytes, seed);
  if (verb == "late") {
    late.push_back(*HostBuffer::Allocate(4096));
    late_regions.push_back(side.Register(late.back().span()));
    return std::to_string(late_regions.back().remote.base) + " " + late_regions.back().key;
  }
  if (verb == "shutdown") side.endpoints.front()->Shutdown(absl::CancelledError("by command"));
  if (verb == "downs") {
    std::string all = std::to_string(side.down.size());
    for (const auto& [endpoint, status] : side.down) all += " " + Text(status);
    return all;
  }
  return "done";
}

// The life of the peer; sleeps in poll() whenever Arm allows.
inline void Serve(int commands, size_t bytes) {
  Side side;
  const HostBuffer shared = *HostBuffer::Allocate(bytes);
  std::vector<std::byte> plain(bytes);
  std::byte* const data[2] = {shared.data(), plain.data()};
  const Side::Region regions[2] = {side.Register(shared.span()),
                                   side.Register({.data = plain.data(), .bytes = bytes})};
  std::vector<HostBuffer> late;
  std::vector<Side::Region> late_regions;
  Child::Tell(commands, Describe(side, regions));
  size_t greeted = 0;
  for (;;) {
    while (side.Poll() > 0) {
    }
    for (; greeted < side.endpoints.size(); ++greeted) {
      side.endpoints[greeted]->Authorize();
      Send(side.endpoints[greeted].get(), "hello");
    }
    pollfd fds[2] = {{commands, POLLIN, 0}, {side.backend->Describe().wait_fd, POLLIN, 0}};
    if (poll(fds, 2, side.backend->Arm() ? -1 : 0) < 0) continue;
    if (fds[0].revents == 0) continue;
    const std::string command = Child::HearFrom(commands);
    if (command.empty()) return;
    Child::Tell(commands, Obey(side, data, bytes, command, late, late_regions));
  }
}

// An initiator connected to a peer that Serves.
struct Dialled {
  Side side;
  Served served;
  Endpoint* out = nullptr;
  HostBuffer buffer;
  Side::Region here;
  std::unique_ptr<RemoteKey> key[2];

  absl::Status Connect(const std::string& description) {
    served = Parse(description);
    auto endpoint = side.backend->Connect(served.address, served.host);
    if (!endpoint.ok()) return endpoint.status();
    side.endpoints.push_back(*std::move(endpoint));
    out = side.endpoints.front().get();
    if (!Drive({&side}, [this] { return !side.messages.empty() || !side.down.empty(); })) {
      return absl::DeadlineExceededError("neither connected nor down");
    }
    if (!side.down.empty()) return side.down.at(out);
    buffer = *HostBuffer::Allocate(served.region[0].bytes);
    here = side.Register(buffer.span());
    return absl::OkStatus();
  }
  absl::Status Import(int way) {
    auto imported = out->Import(served.region[way], served.key[way]);
    if (!imported.ok()) return imported.status();
    key[way] = *std::move(imported);
    return absl::OkStatus();
  }
  Piece All(int way) const {
    return RunBetween(here, served.region[way], served.region[way].bytes, key[way].get());
  }
  absl::Status Do(OpKind kind, std::span<const Piece> runs) {
    return Move({&side}, side, out, kind, runs);
  }
};

}  // namespace kvxfer::shm_test

#endif  // KVXFER_TESTS_UNIT_BACKENDS_SHM_PEER_UTIL_H_
