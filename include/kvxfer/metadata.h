// Metadata from afar: asks an agent for it over the port where its tcp backend listens, so that
// workers need one port each, and no other channel, to find each other. The agent must have been
// made with AgentOptions::serve_metadata. Nothing of it is authenticated or encrypted.
//
// Thread-safety: any thread. No agent is needed, and none is involved at this side.
//
// Example:
//   auto metadata = kvxfer::FetchMetadata("10.0.0.2:7471", std::chrono::seconds(5));
//   if (metadata.ok()) auto peer = agent.AddPeer(*metadata);

#ifndef KVXFER_METADATA_H_
#define KVXFER_METADATA_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// What Agent::Metadata of the agent at `address` says now; AddPeer takes it. `address`: what its
// listen_address says, or a host name: "host:port", "[v6]:port"; kDefaultPort where it names no
// port. Of several addresses that a name has, each is tried.
//
// Returns within `timeout`, but for the resolver, which has its own time-outs; a numeric address
// needs none. `go_on`, where given, is called on this thread, at least every 50 ms while it waits:
// false ends it.
//
// Unavailable: nobody listens there, no route (both with errno), the agent is closing, or too many
// are being told; it may be there a moment later. DeadlineExceeded: no connection, or no whole
// answer, within `timeout`. FailedPrecondition: the agent does not hand out its metadata, or has
// another version. InvalidArgument: a bad address. Internal: the answer is damaged, or no agent's.
// Cancelled: by `go_on`. ResourceExhausted: no descriptors are left.
absl::StatusOr<std::string> FetchMetadata(std::string_view address, Duration timeout,
                                          const std::function<bool()>& go_on = {});

}  // namespace kvxfer

#endif  // KVXFER_METADATA_H_
