// What protocol version 7 adds to version 6, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V7_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V7_H_

namespace kvxfer::golden {

// The body of hello-ack (type 2), which has another one before.
inline constexpr char kHelloAck[] =
    "0700 00 404142434445464748494a4b4c4d4e4f 1122334455667788 0c000000";

// The body of key (type 32), from either side.
inline constexpr char kDialledKey[] =
    "0300000000000000 "
    "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f "
    "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f 00000000";
inline constexpr char kAcceptedKey[] =
    "0000000000000000 "
    "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f "
    "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f 40000000 "
    "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf";

// The body of proof (type 33).
inline constexpr char kProof[] =
    "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf";

// The body of link-gone (type 34).
inline constexpr char kLinkGone[] = "0807060504030201";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V7_H_
