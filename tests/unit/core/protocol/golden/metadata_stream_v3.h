// How metadata is asked for and answered over a tcp stream of version 3, in hexadecimal digits. It
// never changes; another format is another version.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_METADATA_STREAM_V3_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_METADATA_STREAM_V3_H_

namespace kvxfer::golden {

// The preamble.
inline constexpr char kAskForMetadata[] =
    "4b565850 0300 01 00 01 03 0000 00000000 00000000000000000000000000000000 "
    "00000000000000000000000000000000";

// Welcomes: 0x010203 bytes follow, not handed out, busy, closing.
inline constexpr char kMetadataFollows[] =
    "4b565841 0300 01 00 0302010000000000 00000000000000000000000000000000";
inline constexpr char kMetadataNotServed[] =
    "4b565841 0300 04 00 0000000000000000 00000000000000000000000000000000";
inline constexpr char kMetadataBusy[] =
    "4b565841 0300 05 00 0000000000000000 00000000000000000000000000000000";
inline constexpr char kMetadataClosing[] =
    "4b565841 0300 06 00 0000000000000000 00000000000000000000000000000000";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_METADATA_STREAM_V3_H_
