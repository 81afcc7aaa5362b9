// node --expose-internals tools/lint.js FILE ...
// The files are one script, in this order. One line of output per syntax error, and per
// name that is not defined, is defined twice or is never used. The parser is acorn, a
// part of node that --expose-internals makes available.
"use strict";
const {readFileSync} = require("fs");
const {basename} = require("path");
const {runInNewContext} = require("vm");
const {Parser} = require("internal/deps/acorn/acorn/dist/acorn");

const BROWSER = `addEventListener atob clearTimeout document Event getComputedStyle history
  innerHeight innerWidth localStorage location matchMedia MutationObserver navigator Node
  NodeFilter performance requestAnimationFrame ResizeObserver setTimeout TextDecoder
  TextEncoder URLSearchParams window`.split(/\s+/);
const LANGUAGE = runInNewContext("Object.getOwnPropertyNames(globalThis)");
const GLOBALS = new Set([...BROWSER, ...LANGUAGE, "arguments", "undefined"]);

let file;  // the name of the file that is being read
const complaints = [];
const complain = (at, text) => complaints.push(`${at}: ${text}`);
const where = node => `${file}:${node.loc.start.line}`;

class Scope {
  constructor(parent) {
    this.parent = parent;
    this.names = new Map();
  }
  declare(identifier) {
    const {name} = identifier;
    if (this.names.has(name)) complain(where(identifier), `${name} is defined twice`);
    this.names.set(name, {at: where(identifier), isUsed: false});
  }
  use({name}) {
    const found = this.names.get(name);
    if (found) found.isUsed = true;
    return Boolean(found) || Boolean(this.parent?.use({name}));
  }
  close() {
    for (const [name, {at, isUsed}] of this.names) {
      if (!isUsed && !name.startsWith("_")) complain(at, `${name} is never used`);
    }
  }
}

// The identifiers that a pattern such as {a, b: [c, ...d]} defines.
function identifiers(pattern) {
  switch (pattern?.type) {
    case "Identifier": return [pattern];
    case "ObjectPattern": return pattern.properties.flatMap(identifiers);
    case "ArrayPattern": return pattern.elements.flatMap(identifiers);
    case "Property": return identifiers(pattern.value);
    case "AssignmentPattern": return identifiers(pattern.left);
    case "RestElement": return identifiers(pattern.argument);
    default: return [];
  }
}

function declareAll(statements, scope) {
  for (const node of statements) {
    if (node?.type === "VariableDeclaration") {
      const defined = node.declarations.flatMap(({id}) => identifiers(id));
      defined.forEach(i => scope.declare(i));
    } else if (/^(Function|Class)Declaration$/.test(node?.type)) {
      scope.declare(node.id);
    }
  }
}

const isNode = value => typeof value?.type === "string";
const children = node => Object.values(node).flat().filter(isNode);

// Defaults and computed keys of a pattern are expressions; its identifiers are not.
function visitPattern(pattern, scope) {
  if (!pattern || pattern.type === "Identifier") return;
  if (pattern.type === "AssignmentPattern") {
    visitPattern(pattern.left, scope);
    visit(pattern.right, scope);
  } else if (pattern.type === "Property") {
    if (pattern.computed) visit(pattern.key, scope);
    visitPattern(pattern.value, scope);
  } else {
    children(pattern).forEach(child => visitPattern(child, scope));
  }
}

function visitFunction(node, outer) {
  const scope = new Scope(outer);
  const body = node.body.type === "BlockStatement" ? node.body.body : [node.body];
  node.params.flatMap(identifiers).forEach(i => scope.declare(i));
  declareAll(body, scope);
  node.params.forEach(pattern => visitPattern(pattern, scope));
  body.forEach(child => visit(child, scope));
  scope.close();
}

function visitBlock(node, outer, declarations, inside = children(node)) {
  const scope = new Scope(outer);
  identifiers(node.param).forEach(i => scope.declare(i));
  declareAll(declarations, scope);
  inside.forEach(child => visit(child, scope));
  scope.close();
}

function visit(node, scope) {
  if (/Function/.test(node.type)) return visitFunction(node, scope);
  if (/^For/.test(node.type)) return visitBlock(node, scope, [node.init, node.left]);
  switch (node.type) {
    case "BlockStatement": return visitBlock(node, scope, node.body);
    case "CatchClause": return visitBlock(node, scope, [], [node.body]);
    case "Identifier":
      if (!scope.use(node) && !GLOBALS.has(node.name)) {
        complain(where(node), `${node.name} is not defined`);
      }
      return;
    case "VariableDeclarator":
      visitPattern(node.id, scope);
      if (node.init) visit(node.init, scope);
      return;
    case "ClassDeclaration": return children({...node, id: null}).forEach(
      child => visit(child, scope));
    case "MemberExpression":
      visit(node.object, scope);
      if (node.computed) visit(node.property, scope);
      return;
    case "Property":
    case "MethodDefinition":
    case "PropertyDefinition":
      if (node.computed) visit(node.key, scope);
      if (node.value) visit(node.value, scope);
      return;
    default: children(node).forEach(child => visit(child, scope));
  }
}

const scripts = [];
for (const path of process.argv.slice(2)) {
  const options = {ecmaVersion: "latest", locations: true};
  file = basename(path);
  try {
    scripts.push({file, program: Parser.parse(readFileSync(path, "utf8"), options)});
  } catch (error) {
    complain(file, error.message);
  }
}
if (!complaints.length) {
  const top = new Scope(null);
  for (const script of scripts) {
    file = script.file;
    declareAll(script.program.body, top);
  }
  for (const script of scripts) {
    file = script.file;
    script.program.body.forEach(node => visit(node, top));
  }
  top.close();
}
console.log(complaints.join("\n"));
