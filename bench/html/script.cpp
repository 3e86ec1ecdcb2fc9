// The page's script.
#include "bench/html/parts.hpp"

namespace sidestep::bench::html {

namespace {

constexpr const char* page_script = R"js(
(function () {
  'use strict';
  var root = document.documentElement;
  function each(list, call) { Array.prototype.forEach.call(list, call); }

  // The button goes through: as the system, light, dark.
  var themes = ['as the system', 'light', 'dark'], theme = 0;
  var button = document.getElementById('theme');
  button.hidden = false;
  button.addEventListener('click', function () {
    theme = (theme + 1) % themes.length;
    if (theme) root.setAttribute('data-theme', themes[theme]); else root.removeAttribute('data-theme');
    button.textContent = 'Theme: ' + themes[theme];
  });

  // What a pointer or the arrow keys are on is read out below charts or matrices, in place of tooltips.
  function readable(block) {
    var out = block.querySelector('.readout'), hint = 'Point at a value, or use the arrow keys, to read it here.';
    var at = null;
    function show(item) {
      if (item === at) return;
      if (at) at.classList.remove('at');
      at = item;
      if (at) at.classList.add('at');
      out.classList.toggle('on', !!at);
      out.textContent = at ? at.getAttribute('data-t') : hint;
    }
    function prepare(area) {
      var isChart = area.classList.contains('chart');
      var items = Array.prototype.slice.call(area.querySelectorAll(isChart ? 'circle' : 'td[title]'));
      if (!items.length) return;
      items.forEach(function (item) {
        var title = item.querySelector('title');
        item.setAttribute('data-t', title ? title.textContent : item.getAttribute('title'));
        if (title) title.remove(); else item.removeAttribute('title');
      });
      out.textContent = hint;
      function nearest(event) {
        var box = area.getBoundingClientRect(), scale = area.viewBox.baseVal.width / box.width;
        var x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale, best = null, least = 1e9;
        items.forEach(function (item) {
          // Columns first: what lies above or below the pointer is nearer than what lies beside it.
          var distance = Math.hypot(3 * (item.cx.baseVal.value - x), item.cy.baseVal.value - y);
          if (distance < least) { least = distance; best = item; }
        });
        show(best);
      }
      function pointed(event) { if (isChart) nearest(event); else show(event.target.closest('td[data-t]') || at); }
      area.addEventListener('pointermove', pointed);
      area.addEventListener('pointerdown', pointed);
      area.addEventListener('pointerleave', function () { show(null); });
      area.addEventListener('blur', function () { show(null); });
      area.setAttribute('tabindex', '0');
      area.addEventListener('keydown', function (event) {
        var way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (event.key === 'Escape') show(null);
        if (!way) return;
        event.preventDefault();
        var next = items.indexOf(at) + way;
        if (!isChart && /Up|Down/.test(event.key) && at)
          while (items[next] && items[next].cellIndex !== at.cellIndex) next += way;
        if (items[next]) show(items[next]);
      });
    }
    each(block.querySelectorAll('.chart, .heat'), prepare);
  }
  each(document.querySelectorAll('.readable'), readable);

  // A click on a head sorts by its column, another one the other way round. Lines without a value stay last.
  function sortable(table) {
    var heads = table.tHead.rows[0].cells, body = table.tBodies[0];
    each(heads, function (head, column) {
      var press = document.createElement('button');
      press.type = 'button';
      press.textContent = head.textContent;
      head.textContent = '';
      head.appendChild(press);
      press.addEventListener('click', function () {
        var up = head.getAttribute('aria-sort') !== 'ascending';
        each(heads, function (other) { other.removeAttribute('aria-sort'); });
        head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
        function key(row) {
          var cell = row.cells[column], value = cell.getAttribute('data-s');
          return value === null ? cell.textContent : value === '' ? null : Number(value);
        }
        Array.prototype.slice.call(body.rows).map(function (row) { return [key(row), row]; }).sort(function (a, b) {
          if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null);
          var order = typeof a[0] === 'number' ? a[0] - b[0] : a[0].localeCompare(b[0], 'en', { numeric: true });
          return up ? order : -order;
        }).forEach(function (pair) { body.appendChild(pair[1]); });
      });
    });
  }
  each(document.querySelectorAll('.sortable'), sortable);

  function on(id, call) { document.getElementById(id).addEventListener('click', call); }
  function json() { return JSON.stringify(JSON.parse(document.getElementById('report').textContent), null, 2) + '\n'; }
  document.querySelector('.tools').hidden = false;
  on('download', function () {
    var link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([json()], { type: 'application/json' }));
    link.download = 'report.json';
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  });
  on('copy', function () {
    var copy = document.getElementById('copy');
    var told = function (words) { return function () { copy.textContent = words; }; };
    if (navigator.clipboard) navigator.clipboard.writeText(json()).then(told('Copied'), told('Not allowed here'));
    else told('Not allowed here')();
  });
})();
)js";

}  // namespace

const char* script() {
    return page_script;
}

// tests/page says what belongs here when the script has changed.
const char* script_hash() {
    return "7G4CHstQ9rjNiC8AdcaD5daFtblgqDZWm3ZaZrsGP4o=";
}

}  // namespace sidestep::bench::html
