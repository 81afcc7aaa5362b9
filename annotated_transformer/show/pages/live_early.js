// Before the model has arrived: an address that names another sentence than the one in
// the page shows it, without the translation of that one.
{
  const text = new URLSearchParams(location.hash.slice(1)).get("text");
  const field = document.getElementById("sentence");
  if (text && text !== field.defaultValue) {
    field.value = text;
    for (const id of ["result", "source", "translation"]) {
      document.getElementById(id).replaceChildren();
    }
  }
}
