// Names of requests and replies, for logs and for clients that look for theirs. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// 128 bits of the system's random source as 32 hex digits.
std::string random_hex128();

// A client's own id when it is 1 to 128 visible ASCII characters, otherwise a new one.
std::string request_id(std::string_view own);

}  // namespace tandem
