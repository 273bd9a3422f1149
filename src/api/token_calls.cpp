#include "api/token_calls.h"

#include <vector>

#include "api/json_fields.h"
#include "api/json_text.h"
#include "api/request_check.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace tandem {

absl::StatusOr<std::string> tokenize(std::string_view body, const CallContext& context) {
  TANDEM_ASSIGN(const Json json, parse_json_object(body));
  const Fields fields(json);
  if (fields.find("messages") != nullptr) {
    return request_error("'messages' is not supported by /tokenize; send 'prompt' with the rendered text.", "messages",
                         "unsupported_parameter");
  }
  const std::string_view name =
      fields.find("prompt") == nullptr && fields.find("content") != nullptr ? "content" : "prompt";
  if (fields.find(name) == nullptr) return missing_error(name);
  std::string text;
  TANDEM_TRY(fields.read(name, text));
  bool add_special_tokens = true;
  TANDEM_TRY(fields.read("add_special_tokens", add_special_tokens));
  bool wants_texts = false;
  TANDEM_TRY(fields.read("return_token_strs", wants_texts));
  const TextSpan all{.begin = 0, .end = text.size()};
  const std::vector<TokenId> ids = add_special_tokens ? context.tokenizer.encode_prompt(text)
                                                      : context.tokenizer.encode(text, {&all, text.empty() ? 0U : 1U});
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}])", ids.size(),
                                context.model.context_length, fmt::join(ids, ","));
  if (wants_texts) {
    out += R"(,"token_strs":[)";
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out.push_back(',');
      append_json_string(out, context.tokenizer.token_bytes(ids[i]));
    }
    out.push_back(']');
  }
  out.push_back('}');
  return out;
}

absl::StatusOr<std::string> detokenize(std::string_view body, const CallContext& context) {
  TANDEM_ASSIGN(const Json json, parse_json_object(body));
  const Fields fields(json);
  const Json* tokens = fields.find("tokens");
  if (tokens == nullptr) return missing_error("tokens");
  TANDEM_ASSIGN(const std::vector<TokenId> ids, read_token_ids(*tokens, "tokens"));
  std::string bytes;
  for (const TokenId id : ids) {
    TANDEM_TRY(check_token("tokens", id, context.tokenizer));
    bytes += context.tokenizer.token_bytes(id);
  }
  std::string text;
  append_json_string(text, bytes);
  return fmt::format(R"({{"prompt":{0},"text":{0}}})", text);
}

}  // namespace tandem
