-- For the preview alone. Quarto's callouts: a titled box, folded where it says collapse="true".
local words = { note = "Note", tip = "Tip", warning = "Warning", important = "Important", caution = "Caution" }

function Div(div)
  for kind, word in pairs(words) do
    if div.classes:includes("callout-" .. kind) then
      local title, blocks = { pandoc.Str(div.attributes.title or word) }, div.content
      if not div.attributes.title and blocks[1] and blocks[1].t == "Header" then
        title = blocks[1].content
        blocks:remove(1)
      end
      local fold = div.attributes.collapse
      local tag = fold and "details" or "div"
      local open = fold == "false" and " open" or ""
      local head = fold and { "<summary>", "</summary>" } or { '<p class="callout-title">', "</p>" }
      local box = pandoc.Blocks({
        pandoc.RawBlock("html", "<" .. tag .. open .. ' class="callout ' .. kind .. '">' .. head[1]),
        pandoc.Plain(title), pandoc.RawBlock("html", head[2]) })
      box:extend(blocks)
      box:insert(pandoc.RawBlock("html", "</" .. tag .. ">"))
      return box
    end
  end
end

-- As pandoc writes it; but to learn that "cell-output" is no language, it would read the definitions of all languages, on every page.
local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

function CodeBlock(block)
  if block.classes[1] ~= "cell-output" then return nil end
  local text = block.text:gsub("[&<>\"']", escapes)
  return pandoc.RawBlock("html", '<pre class="' .. table.concat(block.classes, " ") .. '"><code>' .. text .. "</code></pre>")
end
