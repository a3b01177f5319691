// The layout of --help.
#ifndef KVXFER_CLI_REFERENCE_HELP_H_
#define KVXFER_CLI_REFERENCE_HELP_H_

#include <CLI/CLI.hpp>
#include <string>

namespace kvxfer::cli {

// Shows one name for each option (and its short form), its value and its default. Synonyms, and
// which options exclude each other, are left out: the parser names those when they are given.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_REFERENCE_HELP_H_
