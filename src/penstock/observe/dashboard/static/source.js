// Where the data comes from: the server of a query, or the page itself if it is a report in one file.

export function openSource() {
  const inlined = document.getElementById("recording");
  return inlined ? keptSource(JSON.parse(inlined.textContent)) : servedSource();
}

function keptSource(data) {
  const within = (ms, from, to) => ms >= from && ms <= to;
  return {
    kept: true,
    async recording(from, to = Infinity) {
      const begin = from < 0 ? data.ended_ms + from : from;
      const chosen = data.series.time_ms.map((ms) => within(ms, begin, to));
      const series = {};
      for (const [name, column] of Object.entries(data.series)) {
        series[name] = column.filter((_, at) => chosen[at]);
      }
      return { ...data, series };
    },
    async momentAt(ms) {
      const distance = (moment) => Math.abs(moment.time_ms - ms);
      return (data.moments ?? []).reduce((a, b) => (a && distance(a) <= distance(b) ? a : b), null);
    },
    follow() {
      return () => {};
    },
  };
}

function servedSource() {
  return {
    kept: false,
    recording(from, to, points) {
      const asked = new URLSearchParams({ from, points });
      if (to != null) asked.set("to", to);
      return answer(fetch(`api/recording?${asked}`));
    },
    momentAt(ms) {
      return answer(fetch(`api/moment?at=${ms}`));
    },
    follow(sinceMs, { news, end, lost, found }) {
      let events, again;
      const open = () => {
        events = new EventSource(`api/events?since=${sinceMs}`);
        events.onopen = found;
        events.addEventListener("moment", (event) => {
          sinceMs = Number(event.lastEventId);
          news(JSON.parse(event.data));
        });
        events.addEventListener("end", () => {
          events.close();
          end();
        });
        events.onerror = () => {
          lost();
          // A browser tries again by itself, except after an answer that it takes as final.
          if (events.readyState === EventSource.CLOSED) again = setTimeout(open, 3000);
        };
      };
      open();
      return () => {
        clearTimeout(again);
        events.close();
      };
    },
    order(name, body, token) {
      return post(`api/${name}`, body, { authorization: `Bearer ${token}` });
    },
    whatIf(body, token) {
      return post("api/what-if", body, token ? { authorization: `Bearer ${token}` } : {});
    },
  };
}

function post(path, body, headers) {
  const all = { "content-type": "application/json", ...headers };
  return answer(fetch(path, { method: "POST", headers: all, body: JSON.stringify(body) }));
}

async function answer(asked) {
  const response = await asked;
  let body = null;
  try {
    body = await response.json();
  } catch {
    body = { error: `the server answered ${response.status} ${response.statusText}` };
  }
  if (!response.ok) throw new Error([body.error, body.hint].filter(Boolean).join(". What to do: "));
  return body;
}
