{{- define "headrace.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "headrace.zookeeper" -}}
{{- if .Values.zookeeper.deploy -}}
{{- if .Values.zookeeper.address }}{{ fail "zookeeper.address is for zookeeper.deploy=false" }}{{ end -}}
{{ .Release.Name }}-zookeeper:2181{{ .Values.zookeeper.path }}
{{- else -}}
{{ required "zookeeper.deploy=false needs zookeeper.address" .Values.zookeeper.address }}{{ .Values.zookeeper.path }}
{{- end }}
{{- end }}

{{- define "headrace.lakeSecret" -}}
{{ .Values.lake.existingSecret | default (printf "%s-lake" .Release.Name) }}
{{- end }}
