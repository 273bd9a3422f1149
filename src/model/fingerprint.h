// Tells a model's files from any others: what must be equal for one's weights, and the keys and values they gave, to
// serve as the other's. Part of the composition root.
#pragma once

#include <string>

#include "tandem/model.h"

namespace tandem {

// Sizes and times of the files and samples of every tensor, as text. Independent of where the files lie. Reads a few
// pages per tensor, not the model.
std::string model_fingerprint(const std::string& path, const ModelFile& model);

}  // namespace tandem
