// A fingerprint of a model's files. Two servers may share weights and KV blocks only if their fingerprints are equal.
// It is built from the files' sizes and times and from samples of every tensor, so it reads a few pages per tensor
// and not the model.
#pragma once

#include <string>

#include "tandem/model.h"

namespace tandem {

// Sizes and times of the files and samples of every tensor, as text. Independent of where the files lie. Reads a few
// pages per tensor, not the model.
std::string model_fingerprint(const std::string& path, const ModelFile& model);

}  // namespace tandem
