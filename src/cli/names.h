// Names that a command line may give in several forms: of a host to listen on, of a model. Pure functions.
#pragma once

#include <filesystem>
#include <string>

namespace tandem {

// "[::1]" is written in URLs; addresses have no brackets.
std::string without_brackets(const std::string& host);

// A model's name where none is given: the last part of a folder's path, or of a file's without its extension. Never
// empty or a dot.
std::string model_name(const std::filesystem::path& path);

}  // namespace tandem
