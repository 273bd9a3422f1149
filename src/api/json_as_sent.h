// Parts of a request body as compact JSON text with the keys in the order in which the client sent them, which a parsed
// tree does not keep. Chat templates print objects key by key, so that their order is part of the prompt. Pure
// functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// The elements of the top object's member `name` when that is an array, otherwise its one value; empty when the object
// has no such member. `body` is one that parse_json_object() takes.
std::vector<std::string> json_as_sent(std::string_view body, std::string_view name);

}  // namespace tandem
