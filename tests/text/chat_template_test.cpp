#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "fmt/core.h"

namespace tandem {
namespace {

// In the style of SmolLM2: a system message of its own where the conversation brings none.
constexpr char kSmol[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// In the style of Llama 3: trimmed contents, the begin token in the template.
constexpr char kLlama[] = R"({{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

// In the style of Qwen 2.5: tools in the system message, calls and results in tags.
constexpr char kQwen[] = R"({%- if tools %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

ChatMessage say(std::string role, std::string content) {
  ChatMessage message;
  message.role = std::move(role);
  message.content = std::move(content);
  return message;
}

ChatPrompt chat(std::vector<ChatMessage> messages) {
  ChatPrompt prompt;
  prompt.messages = std::move(messages);
  return prompt;
}

std::unique_ptr<ChatTemplate> make(const std::string& source) {
  auto made = ChatTemplate::create(source, "<|begin|>", "<|end|>");
  EXPECT_TRUE(made.ok()) << message(made.status());
  return made.ok() ? *std::move(made) : nullptr;
}

absl::StatusOr<RenderedPrompt> render(const std::string& source, const ChatPrompt& prompt) {
  return make(source)->render(prompt);
}

std::string text_of(const std::string& source, const ChatPrompt& prompt) {
  const auto rendered = render(source, prompt);
  return rendered.ok() ? rendered->text : "error: " + std::string(message(rendered.status()));
}

// The text with the user's parts in « ».
std::string marked(const RenderedPrompt& rendered) {
  std::string out;
  std::size_t at = 0;
  for (const TextSpan& span : rendered.user_spans) {
    out +=
        rendered.text.substr(at, span.begin - at) + "«" + rendered.text.substr(span.begin, span.end - span.begin) + "»";
    at = span.end;
  }
  return out + rendered.text.substr(at);
}

TEST(ChatTemplate, renders_a_smollm2_style_conversation) {
  const ChatPrompt prompt = chat({say("user", "Hi"), say("assistant", "Hello"), say("user", "é?")});
  EXPECT_EQ(text_of(kSmol, prompt),
            "<|im_start|>system\nBe helpful<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\n");
  ChatPrompt with_system = chat({say("system", "S"), say("user", "Hi")});
  with_system.add_generation_prompt = false;
  EXPECT_EQ(text_of(kSmol, with_system), "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, renders_a_llama3_style_conversation_with_one_begin_token) {
  const ChatPrompt prompt = chat({say("user", "  Hi\n")});
  EXPECT_EQ(text_of(kLlama, prompt),
            "<|begin|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

ChatPrompt tool_conversation() {
  ChatMessage call = say("assistant", "");
  call.fields_json = R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":)"
                     R"({"name":"set_lamp","arguments":"{\"room\":\"cellar\",\"on\":true,\"level\":1.0}"}}]})";
  ChatMessage result = say("tool", "done");
  result.fields_json = R"({"role":"tool","tool_call_id":"c1","content":"done"})";
  ChatPrompt prompt = chat({say("user", "lamp"), call, result});
  prompt.tools_json = R"([{"type":"function","function":{"name":"set_lamp","description":"<b>","parameters":{}}}])";
  return prompt;
}

TEST(ChatTemplate, renders_tools_and_calls_in_a_qwen_style_template) {
  EXPECT_EQ(text_of(kQwen, tool_conversation()),
            "<|im_start|>system\n# Tools\n<tools>\n"
            R"({"type": "function", "function": {"name": "set_lamp", "description": "<b>", "parameters": {}}})"
            "\n</tools><|im_end|>\n<|im_start|>user\nlamp<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
            R"({"name": "set_lamp", "arguments": {"room": "cellar", "on": true, "level": 1.0}})"
            "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplate, arguments_are_a_mapping_when_they_are_one) {
  const std::string source =
      "{% for c in messages[0].tool_calls %}{{ c.id is defined }} {{ c.type }} "
      "{{ c.function.arguments is mapping }} {{ c.function.arguments }}{% endfor %}";
  const std::pair<const char*, const char*> kCases[] = {{R"("{\"a\": [1, null]}")", "True {'a': [1, None]}"},
                                                        {R"({"a": [1, null]})", "True {'a': [1, None]}"},
                                                        {R"("")", "True {}"},
                                                        {"null", "True {}"},
                                                        {R"("not json")", "False not json"},
                                                        {R"("[1]")", "False [1]"},
                                                        {R"("{\"a\": ")", R"(False {"a": )"}};
  for (const auto& [arguments, expected] : kCases) {
    ChatPrompt prompt = chat({say("assistant", "")});
    prompt.messages[0].fields_json = fmt::format(
        R"({{"role":"assistant","tool_calls":[{{"type":"function","function":{{"name":"f","arguments":{}}}}}]}})",
        arguments);
    EXPECT_EQ(text_of(source, prompt), std::string("False function ") + expected);
  }
}

TEST(ChatTemplate, keys_that_are_not_set_are_absent) {
  const std::string source =
      "{% for k in messages[0] %}{{ k }},{% endfor %}{{ messages[0].tool_calls is defined }}"
      "{{ messages[0].name is defined }}{{ tools is none }}{{ documents is none }}";
  EXPECT_EQ(text_of(source, chat({say("user", "x")})), "role,content,FalseFalseTrueTrue");
}

TEST(ChatTemplate, a_message_reaches_the_template_as_sent_and_in_its_order) {
  ChatPrompt prompt = chat({say("assistant", "x")});
  prompt.messages[0].fields_json = R"({"zeta":{"b":1,"a":[null]},"content":null,"name":"Bob","role":"assistant",)"
                                   R"("refusal":null,"tool_calls":[{"function":{"name":"f","x":2},"index":0}]})";
  EXPECT_EQ(text_of("{{ messages[0] | tojson }}", prompt),
            R"({"zeta": {"b": 1, "a": [null]}, "content": "x", "name": "Bob", "role": "assistant", )"
            R"("tool_calls": [{"function": {"name": "f", "x": 2, "arguments": {}}, "index": 0}]})");
}

TEST(ChatTemplate, reasoning_is_called_thinking_where_a_template_reads_that) {
  ChatPrompt prompt = chat({say("assistant", "x")});
  prompt.messages[0].fields_json = R"({"role":"assistant","content":"x","reasoning_content":"hm"})";
  EXPECT_EQ(text_of("{{ messages[0].thinking }}", prompt), "hm");
  EXPECT_EQ(text_of("{{ messages[0].reasoning_content }}", prompt), "hm");
  EXPECT_EQ(text_of("{{ messages[0] }}", prompt), "{'role': 'assistant', 'content': 'x', 'reasoning_content': 'hm'}");
}

TEST(ChatTemplate, an_empty_content_shows_neither_none_nor_null) {
  EXPECT_EQ(text_of("[{{ messages[0].content }}]", chat({say("assistant", "")})), "[]");
}

TEST(ChatTemplate, everything_from_the_request_is_marked) {
  ChatPrompt prompt = tool_conversation();
  prompt.messages[0].content = "a<|im_end|>b";
  prompt.messages[1].fields_json =
      R"({"role":"assistant","tool_calls":[{"function":{"name":"set_lamp","arguments":{"<|im_start|>":"<|im_end|>"}}}]})";
  const auto rendered = render(kQwen, prompt);
  ASSERT_TRUE(rendered.ok()) << message(rendered.status());
  const std::string text = marked(*rendered);
  EXPECT_NE(text.find("<|im_start|>user\n«a<|im_end|>b»<|im_end|>"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("arguments": {"«<|im_start|>»": "«<|im_end|>»"})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"({"name": "«set_lamp»")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("«description»": "«<b>»")"), std::string::npos) << text;
}

TEST(ChatTemplate, known_roles_can_make_control_tokens_and_others_cannot) {
  const std::string source = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}";
  const auto rendered = render(source, chat({say("user", "x"), say("wizard", "y")}));
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(marked(*rendered), "<|user|>«x»<|«wizard»|>«y»");
}

TEST(ChatTemplate, what_the_template_raises_is_a_request_error_with_its_text) {
  const std::string source =
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('Roles must alternate, not ' + m.role) }}{% endif %}{% endfor %}";
  const auto rendered = render(source, chat({say("user", "a"), say("user", "b")}));
  ASSERT_FALSE(rendered.ok());
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(message(rendered.status()), "Roles must alternate, not user");
  EXPECT_EQ(error_field(rendered.status()), "messages");
}

TEST(ChatTemplate, a_failing_or_endless_template_is_a_request_error) {
  for (const char* source : {"{{ messages[7].content }}", "{{ 'a' + 1 }}",
                             "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"}) {
    const auto rendered = render(source, chat({say("user", "a")}));
    ASSERT_FALSE(rendered.ok()) << source;
    EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error_field(rendered.status()), "messages");
    EXPECT_NE(message(rendered.status()).find("line 1"), std::string_view::npos) << message(rendered.status());
  }
}

TEST(ChatTemplate, bad_json_names_its_field) {
  ChatPrompt prompt = chat({say("user", "a")});
  const std::string deep(100'000, '[');
  for (const std::string& tools : {std::string("{"), std::string("{}"), std::string("3"), deep}) {
    prompt.tools_json = tools;
    const auto rendered = render(kQwen, prompt);
    ASSERT_FALSE(rendered.ok());
    EXPECT_EQ(error_field(rendered.status()), "tools");
  }
  prompt.tools_json.clear();
  for (const char* kwargs : {"[]", "{", R"({"messages": []})", R"({"add_generation_prompt": false})"}) {
    prompt.template_kwargs_json = kwargs;
    const auto rendered = render(kQwen, prompt);
    ASSERT_FALSE(rendered.ok()) << kwargs;
    EXPECT_EQ(error_field(rendered.status()), "chat_template_kwargs");
  }
}

TEST(ChatTemplate, template_arguments_are_variables_and_the_users_text) {
  ChatPrompt prompt = chat({say("user", "a")});
  prompt.template_kwargs_json = R"({"enable_thinking": false, "style": "<|x|>"})";
  const auto rendered = render("{{ enable_thinking }}{{ style }}{{ other is defined }}", prompt);
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(marked(*rendered), "False«<|x|>»False");
}

TEST(ChatTemplate, a_continued_message_ends_with_its_content) {
  ChatPrompt prompt = chat({say("user", "Say"), say("assistant", "The answer is ")});
  prompt.continue_final_message = true;
  const auto rendered = render(kSmol, prompt);
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(marked(*rendered),
            "<|im_start|>system\nBe helpful<|im_end|>\n<|im_start|>user\n«Say»<|im_end|>\n"
            "<|im_start|>assistant\n«The answer is »");
  // A template that trims its contents trims this one too.
  EXPECT_EQ(text_of(kLlama, prompt).substr(9),
            "<|start_header_id|>user<|end_header_id|>\n\nSay<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nThe answer is");
}

TEST(ChatTemplate, a_message_that_the_template_does_not_show_cannot_be_continued) {
  ChatPrompt prompt = chat({say("user", "Say"), say("assistant", "hello there")});
  prompt.continue_final_message = true;
  for (const char* source : {"{{ messages[0].content }}", "{{ messages[1].content|upper }}"}) {
    const auto rendered = render(source, prompt);
    ASSERT_FALSE(rendered.ok()) << source;
    EXPECT_EQ(error_field(rendered.status()), "continue_final_message");
  }
  prompt.messages.clear();
  EXPECT_FALSE(render(kSmol, prompt).ok());
}

TEST(ChatTemplate, text_that_looks_like_the_inner_mark_does_not_move_the_cut) {
  ChatPrompt prompt = chat({say("user", "end-of-content-0"), say("assistant", "x end-of-content-1 y")});
  prompt.continue_final_message = true;
  const std::string text = text_of(kSmol, prompt);
  EXPECT_EQ(text.substr(text.size() - 20), "x end-of-content-1 y");
}

TEST(ChatTemplate, generation_tags_render_as_if_they_were_not_there) {
  for (const char* source : {"{% generation %}{{ messages[0].content }}{% endgeneration %}",
                             "{%- generation -%} {{- messages[0].content -}} {%- endgeneration -%}"}) {
    EXPECT_EQ(text_of(source, chat({say("user", "a")})), "a");
  }
}

TEST(ChatTemplate, an_unsupported_construct_is_refused_at_the_start) {
  const auto made = ChatTemplate::create("ok\n{% include 'other' %}", "", "");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(message(made.status()).find("line 2"), std::string_view::npos);
  EXPECT_NE(message(made.status()).find("include"), std::string_view::npos);
}

TEST(ChatTemplate, long_conversations_fit_the_budget) {
  ChatPrompt prompt;
  for (int i = 0; i < 1000; ++i) {
    prompt.messages.push_back(say("user", std::string(1000, 'x')));
    prompt.messages.push_back(say("assistant", std::string(1000, 'y')));
  }
  const auto rendered = render(kQwen, prompt);
  ASSERT_TRUE(rendered.ok()) << message(rendered.status());
  EXPECT_GT(rendered->text.size(), 2'000'000U);
  EXPECT_EQ(rendered->user_spans.size(), 2000U);
}

}  // namespace
}  // namespace tandem
