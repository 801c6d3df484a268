package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

// updatesOf writes one object in all the ways in which its managedFields may change, or may be sent.
func updatesOf(name string) []call {
	path := defaultNS + "configmaps/" + name
	sent := func(record, data string) call {
		return put(path+"?fieldManager=putter", fmt.Sprintf(`{"metadata":{"name":%q,"managedFields":%s},"data":{"k":%q}}`, name, record, data))
	}
	const entry = `{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:k":{}}}}`
	pod, pods := "p-"+name, defaultNS+"pods"
	lease := "/apis/coordination.k8s.io/v1/namespaces/default/leases/" + name
	status := func(ip, uid string) string {
		return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":%q}]},"status":{"phase":"Running","podIP":%[2]q,"podIPs":[{"ip":%[2]q}],"conditions":[{"type":"Ready","status":"True"}]}}`, uid, ip)
	}
	ip := fmt.Sprintf("10.0.0.%d", len(name))
	return []call{
		post(defaultNS+"configmaps?fieldManager=maker", fmt.Sprintf(`{"metadata":{"name":%q},"data":{"k":"v"}}`, name)),
		put(path, fmt.Sprintf(`{"metadata":{"name":%q},"data":{"k":"w"}}`, name)),
		put(path+"?fieldManager=maker", fmt.Sprintf(`{"metadata":{"name":%q},"data":{"k":"x","l":"y"}}`, name)),
		patch("merge-patch+json", path+"?fieldManager=merger", `{"data":{"l":"z"}}`),
		patch("merge-patch+json", path+"?fieldManager=merger", `{"data":{"l":"zz"}}`),
		patch("strategic-merge-patch+json", path+"?fieldManager=merger", `{"data":{"l":null,"m":"1"},"metadata":{"labels":{"a":"b"}}}`),
		patch("merge-patch+json", path, `{"data":{"m":{"no":"text"}}}`),
		patch("merge-patch+json", path, `{"data":"none"}`),
		patch("merge-patch+json", path+"?fieldValidation=Strict", `{"dat":{"m":"2"}}`),
		patch("merge-patch+json", path+"?fieldValidation=Warn", `{"dat":{"m":"2"},"data":{"m":"2"}}`),
		patch("strategic-merge-patch+json", path, `{"data":{"m":{"no":"text"}}}`),
		patch("strategic-merge-patch+json", path, `{"metadata":{"$patch":"replace","labels":{"c":"d"}}}`),
		patch("merge-patch+json", path, `{"metadata":{"name":"other"}}`),
		patch("merge-patch+json", path, `{"metadata":{"uid":"other"}}`),
		patch("merge-patch+json", path, `{"metadata":{"annotations":{"big":"`+strings.Repeat("x", 2000)+`"}}}`),
		patch("merge-patch+json", path, `{"data":{"m":{"no":"text"}}}`),
		patch("merge-patch+json", path, `{"data":{"m":"3"}}`),
		patch("apply-patch+yaml", path+"?fieldManager=applier&force=true", fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {k: applied}\n", name)),
		patch("merge-patch+json", path, `{"data":{"k":"4"}}`),
		put(path, fmt.Sprintf(`{"metadata":{"name":%q},"data":{"k":"4"}}`, name)),
		patch("merge-patch+json", path, `{"metadata":{"managedFields":null}}`),
		patch("merge-patch+json", path, `{"metadata":{"\u006danagedFields":[{}]}}`),
		patch("merge-patch+json", path, `{"data":{"k":"5"}}`),
		sent("["+entry+"]", "6"),
		sent("["+entry+"]", "7"),
		patch("json-patch+json", path, `[{"op":"test","path":"/metadata/managedFields/0/manager","value":"m"},{"op":"replace","path":"/data/k","value":"8"}]`),
		sent(`[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV2"}]`, "9"),
		sent("[]", "10"),
		sent("["+entry+"]", "11"),
		sent("[{}]", "12"),
		patch("strategic-merge-patch+json", path, `{"metadata":{"managedFields":[`+entry+`]}}`),
		patch("merge-patch+json", defaultNS+"configmaps/missing-"+name, `{"data":{"k":"v"}}`),
		put(lease, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"holderIdentity":"a"}}`, name)),
		put(lease, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"holderIdentity":"b"}}`, name)),
		put(lease+"-sent", fmt.Sprintf(`{"metadata":{"name":"%s-sent","managedFields":[%s]},"spec":{"holderIdentity":"b"}}`, name, entry)),
		post(pods, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i"}]}}`, pod)),
		patch("strategic-merge-patch+json", pods+"/"+pod+"/status", status(ip, "1-"+name)),
		patch("strategic-merge-patch+json", pods+"/"+pod+"/status", status("10.1"+ip[2:], "1-"+name)),
		patch("strategic-merge-patch+json", pods+"/"+pod+"/status", `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`),
		patch("merge-patch+json", pods+"/"+pod, `{"metadata":{"labels":{"a":"b"}}}`),
		put(pods+"/"+pod+"/status", fmt.Sprintf(`{"metadata":{"name":%q,"managedFields":[{}]},"spec":{"containers":[{"name":"c","image":"i"}]},"status":{"phase":"Failed"}}`, pod)),
		get(path), get(pods + "/" + pod), get(lease),
	}
}

// TestManagedFieldsOfUpdatesMatchUpstream writes several similar objects: managedFields of the later ones are copied
// from the first.
func TestManagedFieldsOfUpdatesMatchUpstream(t *testing.T) {
	ours, _ := newLarder(t)
	theirs := newUpstream(t)
	for _, s := range []*side{ours, theirs} {
		s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	}
	for _, name := range []string{"a", "bb", "ccc"} {
		for i, c := range updatesOf(name) {
			t.Run(fmt.Sprintf("%d %s %s", i, c.method, c.path), func(t *testing.T) {
				compare(t, ours.call(t, c), theirs.call(t, c))
			})
		}
	}
}
