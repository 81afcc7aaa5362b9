-- An equation that ends in \tag{n} gets the paper's number beside it and the anchor equation-n.
-- A drawing of ours is put into the page, so that its links work and it takes the page's colours. A picture alone in a paragraph has no
-- caption but an alternative text. A word below a letter, as in d_{model}, stands upright; indices and variables do not. A cell of a table that
-- holds a sentence is marked, so that the styles do not squeeze it on a phone.
if not FORMAT:match "html" then return {} end

local function equation(math, n)
  math.text = math.text:gsub("%s*\\tag{[^}]*}", "")
  return pandoc.Div({ pandoc.Div(pandoc.Para { math }, { class = "wide" }), pandoc.Div(pandoc.Plain { "(" .. n .. ")" }, { class = "number" }) },
    { id = "equation-" .. n, class = "equation" })
end

local SLANTED = { ij = true, pos = true }

function Math(math)
  math.text = math.text:gsub("_{(%a%a+)}", function(word)
    return not SLANTED[word] and "_{\\text{" .. word .. "}}" or nil
  end)
  return math
end

function Table(tab)
  for _, body in ipairs(tab.bodies) do
    for _, row in ipairs(body.body) do
      for _, cell in ipairs(row.cells) do
        local text = pandoc.utils.stringify(cell.contents)
        local length = (pandoc.text.len(text) + #text) / 2 -- a Chinese character has three bytes and the width of two letters
        local class = length > 120 and "longer" or length > 40 and "long"
        if class then cell.contents = { pandoc.Div(cell.contents, { class = class }) } end -- Quarto drops the classes of cells
      end
    end
  end
  return tab
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
  local linked = svg and svg:match "<a[%s>]"
  if not linked and not (svg and svg:match '^<svg[^>]*class="at%-drawing"') then return nil end
  local alt = image.attributes.alt or image.attributes["fig-alt"] or pandoc.utils.stringify(image.caption)
  alt = alt:gsub("&", "&amp;"):gsub('"', "&quot;"):gsub("%%", "%%%%")
  svg = svg:gsub(' aria%-labelledby="[^"]*"', "", 1)
  svg = svg:gsub("^.-<svg", '<svg role="' .. (linked and "group" or "img") .. '" aria-label="' .. alt .. '"', 1)
  local width = svg:match 'viewBox="0 0 ([%d.]+)' -- letters are 12 units high or more, and are to be 9 pixels
  svg = '<span class="drawing" style="--least: ' .. math.floor(0.77 * width) .. 'px">' .. svg .. "</span>"
  return pandoc.RawInline("html", (svg:gsub('href="[^"]-(%w+)_?([%w_]*)%.ipynb', function(number, name)
    return 'href="' .. (number:match "^%d+%a?$" and name or number .. (name ~= "" and "_" .. name or "")) .. ".html"
  end)))
end

-- pandoc takes the alternative text of such a picture for its caption.
function Figure(figure)
  local inlines = figure.content[1] and figure.content[1].content
  local image = inlines and inlines[1]
  if figure.identifier ~= "" or not image or image.t ~= "Image" or image.attributes["fig-alt"] then return nil end
  local same = pandoc.utils.stringify(image.caption) == pandoc.utils.stringify(figure.caption.long)
  return same and pandoc.Para(inlines) or nil
end

return { { Figure = Figure }, { Image = Image, Math = Math, Para = Para, Table = Table } }
