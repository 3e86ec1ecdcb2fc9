// The search runs in a worker, which browsers refuse to a page that comes from a disk. There a hidden frame takes its place.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.answer = data => this.dispatchEvent(new MessageEvent("message", { data }))
      frame.srcdoc = `<script>postMessage = data => frameElement.answer(data)</script><script src="${script}"></script>`
      this.frame = new Promise(loaded => frame.addEventListener("load", () => loaded(frame.contentWindow)))
      document.body.append(frame)
    }
    async postMessage(data) {
      (await this.frame).dispatchEvent(new MessageEvent("message", { data }))
    }
  }
