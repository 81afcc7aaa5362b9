-- For Quarto and the preview alike. An equation that ends in \tag{n} gets the paper's number beside it and the anchor equation-n.
-- A drawing that holds links is put into the page, so that they work. A word below a letter, as in d_{model}, stands upright.
if not FORMAT:match "html" then return {} end

local function equation(math, n)
  math.text = math.text:gsub("%s*\\tag{[^}]*}", "")
  return pandoc.Div({ pandoc.Div(pandoc.Para { math }, { class = "wide" }), pandoc.Div(pandoc.Plain { "(" .. n .. ")" }, { class = "number" }) },
    { id = "equation-" .. n, class = "equation" })
end

function Math(math)
  math.text = math.text:gsub("_{(%a%a+)}", "_{\\text{%1}}")
  return math
end

function Para(para)
  local blocks, rest = pandoc.Blocks {}, pandoc.Inlines {}
  local function flush()
    if #pandoc.utils.stringify(rest) > 0 then blocks:insert(pandoc.Para(rest)) end
    rest = pandoc.Inlines {}
  end
  for _, el in ipairs(para.content) do
    local n = el.t == "Math" and el.mathtype == "DisplayMath" and el.text:match "\\tag{([^}]*)}"
    if n then
      flush()
      blocks:insert(equation(el, n))
    else
      rest:insert(el)
    end
  end
  if #blocks == 0 then return nil end
  flush()
  return blocks
end

function Image(image)
  if not image.src:match "%.svg$" then return nil end
  local file = io.open(image.src) or io.open("nbs/" .. image.src)
  local svg = file and file:read "a"
  if not svg or not svg:match "<a[%s>]" then return nil end
  local alt = image.attributes.alt or image.attributes["fig-alt"] or pandoc.utils.stringify(image.caption)
  alt = alt:gsub("&", "&amp;"):gsub('"', "&quot;"):gsub("%%", "%%%%")
  svg = svg:gsub("^.-<svg", '<span class="drawing"><svg role="group" aria-label="' .. alt .. '"', 1) .. "</span>"
  return pandoc.RawInline("html", (svg:gsub('href="[^"]-(%w+)_?([%w_]*)%.ipynb', function(number, name)
    return 'href="' .. (number:match "^%d+%a?$" and name or number .. (name ~= "" and "_" .. name or "")) .. ".html"
  end)))
end
